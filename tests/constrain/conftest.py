"""The default model's vocabulary as masks see it, built once for all constraint tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.constrain.grammars import Grammars
from engine.prompt.tokenizer import HfTokenizer


@pytest.fixture(scope="session")
def tokenizer(default_model: Path) -> HfTokenizer:
    """The default model's vocabulary."""
    return HfTokenizer.from_folder(default_model)


@pytest.fixture(scope="session")
def grammars(tokenizer: HfTokenizer) -> Iterator[Grammars]:
    """Constraints over it."""
    grammars = Grammars(tokenizer.for_any_thread())
    yield grammars
    grammars.close()
