"""The default model's vocabulary as masks see it, built once for all constraint tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.constrain.grammars import Grammars
from engine.prompt.tokenizer import HfTokenizer


@pytest.fixture(scope="session")
def tokenizer(default_model: Path) -> HfTokenizer:
    """The default model's vocabulary."""
    return HfTokenizer.from_folder(default_model)


@pytest.fixture(scope="session")
def grammars(tokenizer: HfTokenizer) -> Grammars:
    """Constraints over it."""
    return Grammars(tokenizer.for_any_thread())
