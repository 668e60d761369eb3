"""From what a request asks of its answer to the constraint of one sequence.

Knows no wire format and no tensors.

Compiling belongs to the render thread, masks to the engine thread. A compiled grammar is kept and
copied for each sequence.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from engine.constrain.grammar import behind_reasoning, calls_grammar, format_grammar
from engine.constrain.vocabulary import open_vocabulary
from engine.errors import BadFormat
from engine.prompt.output_syntax import PLAIN, OutputSyntax
from engine.prompt.tokenizer import Tokenizer
from engine.prompt.types import Tool
from engine.types import Sampling

NUM_KEPT: Final = 64
"""Compiled grammars that are kept, the least recently used goes first."""

MAX_QUOTED: Final = 300
"""Characters of the compiler's message that a client is told."""


class Grammars:
    """Makes constraints over one vocabulary. `tokenizer.encode` must be good for any thread.

    Nothing is built before the first constraint is asked for, so that no start waits for it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._kept: OrderedDict[str, LLMatcher] = OrderedDict()

    def constraint(
        self, sampling: Sampling, tools: Sequence[Tool] = (), syntax: OutputSyntax = PLAIN
    ) -> GrammarConstraint | None:
        """What keeps an answer to what `sampling` asks: calls of `tools` where they are forced,
        else the output format; None where it asks for neither. `syntax` is how this model writes
        calls, and whether it reasons before an answer.

        Raises `BadFormat` for what is no grammar, cannot be kept or is too large.
        """
        grammar = None
        if syntax.calls is not None:
            grammar = calls_grammar(
                syntax.calls, tools, sampling.tool_choice, self._tokenizer.special_tokens
            )
        if grammar is None and sampling.output_format is not None:
            grammar = format_grammar(sampling.output_format)
            if syntax.reasoning is not None:
                grammar = behind_reasoning(
                    grammar, syntax.reasoning, self._tokenizer.special_tokens
                )
        if grammar is None:
            return None
        return GrammarConstraint(
            self._compiled(grammar).deep_copy(),
            self._tokenizer.stop_ids,
            self._vocabulary.vocab_size,
        )

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        if not self._tokenizer.stop_ids:
            raise BadFormat(
                "this model has no token that ends an answer, so its form cannot be kept"
            )
        return open_vocabulary(self._tokenizer)

    def _compiled(self, grammar: str) -> LLMatcher:
        matcher = self._kept.get(grammar)
        if matcher is None:
            # Verbose errors quote what was generated.
            matcher = LLMatcher(
                self._vocabulary, grammar, log_level=0, limits=LLParserLimits(verbose_errors=False)
            )
            if matcher.is_error():
                raise BadFormat(_told(matcher.get_error()))
            self._kept[grammar] = matcher
            if len(self._kept) > NUM_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(grammar)
        return matcher


class GrammarConstraint:
    """Implements `engine.schedule.sequence.Constraint`, owned by one sequence."""

    def __init__(self, matcher: LLMatcher, stop_ids: Iterable[int], vocab_size: int) -> None:
        self._matcher = matcher
        self._stop_ids = frozenset(stop_ids)
        self._stops = sum(1 << token_id for token_id in self._stop_ids).to_bytes(
            (vocab_size + 7) // 8, "little"
        )
        self._is_over = False

    @property
    def failure(self) -> str | None:
        """See `Constraint.failure`."""
        return (
            "the grammar is too complex for the answer it led to"
            if self._matcher.is_error()
            else None
        )

    def allowed(self) -> bytes:
        """See `Constraint.allowed`. A token that ends the answer is allowed where the grammar is
        satisfied."""
        if self._is_over:
            return self._stops
        mask = self._matcher.compute_bitmask()
        return self._stops if self._matcher.is_error() else mask

    def advance(self, token_id: int) -> None:
        """See `Constraint.advance`. Behind a token that ends the answer there are only others like
        it."""
        if token_id in self._stop_ids:
            self._is_over = True
        else:
            self._matcher.consume_token(token_id)


def _told(error: str) -> str:
    """The compiler's message, cut where it gets long. A panic's is about the compiler, and not
    about the grammar."""
    if error.startswith("panic"):
        return "the grammar is too large"
    text = " ".join(error.replace("<non-verbose/>", "").split())
    return text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + "..."
