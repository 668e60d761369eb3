"""Counts the calls of the product's functions while a block runs, on this thread."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parents[2]

NESTED = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
"""Frames of a comprehension: later versions of Python have none, and no reader looks for them."""


@contextmanager
def counting_calls(*folders: str) -> Iterator[Counter[CodeType]]:
    """Calls of functions below `folders` of the repository. A coroutine or a generator that is
    resumed counts as called again."""
    prefixes = tuple(f"{ROOT / folder}/" for folder in folders)
    calls = Counter[CodeType]()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(prefixes) and code.co_name not in NESTED:
            calls[code] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)
