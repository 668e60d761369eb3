"""A prompt as the model sees it: token ids, and where each position of the request ends in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.prompt.output_syntax import PLAIN, OutputSyntax
from engine.prompt.types import Position


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """`offsets[p]` is the number of tokens up to and including position `p`; it never decreases in
    wire order.

    `offsets` holds every position of the prompt, marked or not, in wire order. `preamble` is the
    number of tokens before the first token that any position's content contributed. `syntax` is
    that of the answer. `clock` are the tokens that another day may change, where the template
    writes the date.
    """

    token_ids: tuple[int, ...]
    offsets: Mapping[Position, int]
    preamble: int
    syntax: OutputSyntax = PLAIN
    clock: range = range(0)
