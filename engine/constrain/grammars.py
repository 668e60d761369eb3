"""From what a request asks of its answer to the constraint of one sequence.

Knows no wire format and no tensors.

Nothing is compiled here before a process that may die of it has tried it out (`trials.py`).
Compiling belongs to the forms thread, masks to the engine thread. A compiled grammar is kept and
copied for each sequence.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final
from weakref import WeakSet

from llguidance import LLMatcher, LLTokenizer

from engine.constrain.grammar import behind_reasoning, calls_grammar, format_grammar
from engine.constrain.trial import limits
from engine.constrain.trials import Trials
from engine.constrain.vocabulary import described, open_vocabulary
from engine.errors import BadFormat, BadTools, Overloaded
from engine.prompt.output_syntax import PLAIN, OutputSyntax
from engine.prompt.tokenizer import Tokenizer
from engine.prompt.types import Tool
from engine.structures.lru import LruCache
from engine.types import Sampling

NUM_KEPT: Final = 64
"""Compiled grammars that are kept, the least recently used goes first."""

KEPT_NBYTES: Final = 128 * 1024**2
"""The memory that the kept grammars may take together."""

LIVE_NBYTES: Final = 512 * 1024**2
"""The memory of all compiled grammars, including those that requests in flight hold."""

MAX_QUOTED: Final = 300
"""Characters of the compiler's message that a client receives."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class CompiledGrammar:
    """A grammar in its first state, which is copied and never moved on."""

    matcher: LLMatcher
    nbytes: int


class Grammars:
    """Makes constraints over one vocabulary. `tokenizer.encode` must be good for any thread.
    Thread-safe.

    Nothing is built before the first constraint is asked for, so that no start waits for it.
    """

    def __init__(self, tokenizer: Tokenizer, trials: Trials | None = None) -> None:
        self._tokenizer = tokenizer
        self._trials = trials or Trials(lambda: described(tokenizer))
        self._lock = threading.Lock()
        self._kept: LruCache[str, CompiledGrammar] = LruCache(KEPT_NBYTES, _kept_nbytes)
        self._live: WeakSet[CompiledGrammar] = WeakSet()

    def form(
        self, sampling: Sampling, tools: Sequence[Tool] = (), syntax: OutputSyntax = PLAIN
    ) -> GrammarForm | None:
        """The form that `sampling` asks for; None if it asks for none.

        It is calls of `tools` if they are forced, else the output format. `syntax` is how this
        model writes calls, and whether it reasons before an answer. Compiles nothing.

        Raises `BadFormat` for what is no grammar, cannot be kept or is too large, `BadTools` where
        that is of tools.
        """
        grammar = None
        if syntax.calls is not None:
            grammar = calls_grammar(
                syntax.calls, tools, sampling.tool_choice, self._tokenizer.special_tokens
            )
        of_tools = grammar is not None
        if grammar is None and sampling.output_format is not None:
            grammar = format_grammar(sampling.output_format)
            if syntax.reasoning is not None:
                grammar = behind_reasoning(
                    grammar, syntax.reasoning, self._tokenizer.special_tokens
                )
        if grammar is None:
            return None
        if not self._tokenizer.stop_ids:
            raise BadFormat(
                "this model has no token that ends an answer, so its form cannot be kept"
            )
        return GrammarForm(self, grammar, of_tools)

    def constraint(
        self, sampling: Sampling, tools: Sequence[Tool] = (), syntax: OutputSyntax = PLAIN
    ) -> GrammarConstraint | None:
        """The constraint of `form`, now: may take seconds. Raises as `form` and
        `GrammarForm.constraint` do."""
        form = self.form(sampling, tools, syntax)
        return None if form is None else form.constraint()

    def close(self) -> None:
        """End the process that tries grammars out, if there is one."""
        self._trials.close()

    def is_at_hand(self, grammar: str) -> bool:
        """Whether it is known what becomes of a grammar, so that nobody waits for it."""
        with self._lock:
            return self._kept.get(grammar) is not None or self._trials.refusal(grammar) is not None

    def constrained(self, grammar: str) -> GrammarConstraint:
        """See `GrammarForm.constraint`."""
        compiled = self._compiled(grammar)
        return GrammarConstraint(compiled, self._tokenizer.stop_ids, self._vocabulary.vocab_size)

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        return open_vocabulary(self._tokenizer)

    def _compiled(self, grammar: str) -> CompiledGrammar:
        with self._lock:
            compiled = self._kept.get(grammar)
        if compiled is not None:
            return compiled
        try:
            nbytes = self._trials.nbytes(grammar)
        except BadFormat as error:
            raise BadFormat(_client_message(str(error))) from None
        with self._lock:
            if sum(compiled.nbytes for compiled in self._live) + nbytes > LIVE_NBYTES:
                self._kept.clear()
                raise Overloaded("answers in too many different forms are in flight")
        matcher = LLMatcher(self._vocabulary, grammar, log_level=0, limits=limits())
        if matcher.is_error():
            raise BadFormat(_client_message(matcher.get_error()))
        compiled = CompiledGrammar(matcher, nbytes)
        with self._lock:
            self._live.add(compiled)
            self._kept.put(grammar, compiled)
        return compiled


@dataclass(frozen=True, slots=True)
class GrammarForm:
    """Implements `engine.forms.Form`: a grammar that may have to be compiled."""

    grammars: Grammars
    grammar: str
    of_tools: bool = False

    @property
    def is_at_hand(self) -> bool:
        """See `Form.is_at_hand`."""
        return self.grammars.is_at_hand(self.grammar)

    def constraint(self) -> GrammarConstraint:
        """See `Form.constraint`. Raises `BadFormat` or `BadTools` for what is no grammar or would
        do harm, `Overloaded` where there is no memory for it now."""
        try:
            return self.grammars.constrained(self.grammar)
        except BadFormat as error:
            raise (BadTools if self.of_tools else BadFormat)(str(error)) from None


def _kept_nbytes(grammar: str, compiled: CompiledGrammar) -> int:
    """Its share of `KEPT_NBYTES`, which also bounds how many are kept."""
    return max(compiled.nbytes, KEPT_NBYTES // NUM_KEPT)


class GrammarConstraint:
    """Implements `engine.schedule.sequence.Constraint`, owned by one sequence. Takes memory of its
    own once it is asked."""

    def __init__(self, compiled: CompiledGrammar, stop_ids: Iterable[int], vocab_size: int) -> None:
        self._compiled = compiled
        self._stop_ids = frozenset(stop_ids)
        self._stops = sum(1 << token_id for token_id in self._stop_ids).to_bytes(
            (vocab_size + 7) // 8, "little"
        )
        self._is_over = False

    @cached_property
    def _matcher(self) -> LLMatcher:
        return self._compiled.matcher.deep_copy()

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


def _client_message(error: str) -> str:
    """The compiler's message, cut after `MAX_QUOTED` characters.

    The message of a panic is about the compiler, not about the grammar.
    """
    if error.startswith("panic"):
        return "the grammar is too large"
    text = " ".join(error.replace("<non-verbose/>", "").split())
    return text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + "..."
