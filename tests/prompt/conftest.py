"""The default model's vocabulary, loaded once for all prompt tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.prompt.render import Renderer
from engine.prompt.template import ChatTemplate
from engine.prompt.tokenizer import HfTokenizer


@pytest.fixture(scope="session")
def tokenizer(default_model: Path) -> HfTokenizer:
    """The default model's vocabulary."""
    return HfTokenizer.from_folder(default_model)


@pytest.fixture(scope="session")
def renderer(default_model: Path, tokenizer: HfTokenizer) -> Renderer:
    """The default model's vocabulary with the template it gets by default."""
    return Renderer(tokenizer, ChatTemplate.load("auto", default_model, tokenizer))
