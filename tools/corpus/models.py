"""Models whose answers are the same on every run: noise from fixed weights,
and one that says and thinks fixed words.
"""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from tests.fakes.small_model import HIDDEN, save_small_model

STRENGTH: Final = 4.0
"""Makes the next word certain, at temperature 1 too."""

THOUGHT: Final = ("\n", "Let", " me", " see", "</", "think", ">")
SAID: Final = (">", "Yes", ",", " it", " is", "!", "<|im_end|>")
"""Each word follows the one before it; the prompt ends in the first word of the one or of the
other."""

TEMPLATE: Final = Path(__file__).with_name("thinker.jinja")


def save_models(like: Path, folder: Path) -> None:
    """`small` and `thinker` below `folder`, both with the tokenizer of the model in `like`."""
    save_small_model(like, folder / "small")
    save_thinker(like, folder / "thinker")


def save_thinker(like: Path, folder: Path) -> None:
    """The small model, but each word that it says follows from the last one alone."""
    save_small_model(like, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8")) | {
        "tie_word_embeddings": False
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    shutil.copyfile(TEMPLATE, folder / "chat_template.jinja")
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    weights = load_file(folder / "model.safetensors")
    for name in weights:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] = np.zeros_like(weights[name])
    words = weights["model.embed_tokens.weight"]
    words /= np.linalg.norm(words, axis=1, keepdims=True) / HIDDEN**0.5
    head = np.zeros_like(words)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for chain in (THOUGHT, SAID):
        for word, following in pairwise(chain):
            head[_id(tokenizer, following)] += STRENGTH * words[_id(tokenizer, word)]
    save_file(
        weights | {"lm_head.weight": head}, folder / "model.safetensors", metadata={"format": "pt"}
    )


def _id(tokenizer: Tokenizer, word: str) -> int:
    """Of a word that is one token."""
    (token_id,) = tokenizer.encode(word, add_special_tokens=False).ids
    return int(token_id)
