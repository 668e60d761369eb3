"""From sampled tokens to an answer's text, reasoning and tool calls, and to its end.

Knows no model, cache or threads.

Tokens become characters, characters become reasoning or answer, the answer becomes text or calls,
and the text is searched for stop strings; each stage holds back text that is not certain yet. Stop
strings are looked for in visible text alone: one like `}` or a newline would end every call and
every thought.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec

from engine.output.calls.events import CallArguments, CallBegin, CallEvent, Text
from engine.output.calls.parser import CallParser
from engine.output.detokenizer import Detokenizer
from engine.output.reasoning import ReasoningSplitter, ReasoningText
from engine.output.stops import StopMatcher
from engine.prompt.output_syntax import PLAIN, OutputSyntax
from engine.prompt.tokenizer import Tokenizer
from engine.types import FinishReason, Sampling, TokenLogprob, TokenLogprobs


@dataclass(frozen=True, slots=True)
class CallPiece:
    """More of call number `index`. The first piece of a call has its `name`."""

    index: int
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """A piece of the answer: text, reasoning (`thinking`), or a piece of a `call`, without text.

    `finish` is set on the last piece, `stop` when a stop string ended it. `logprobs` is one per
    token, where there are any.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    finish: FinishReason | None = None
    stop: str | None = None
    thinking: bool = False
    call: CallPiece | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()


class OutputParser:
    """One answer in the making.

    `num_tokens` counts what was sampled, without the end-of-turn token that ends the answer: the
    number of ids in all pieces. `at_limit` is the finish reason when `sampling.max_tokens`
    is reached. `syntax` is the form of calls and reasoning; with `tool_choice: none`, what looks
    like a call is text, and so is a call of a tool that was offered but not chosen. Where calls may
    not be parallel, the answer ends with `stop` before a second one would begin.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        sampling: Sampling,
        at_limit: FinishReason,
        syntax: OutputSyntax = PLAIN,
    ) -> None:
        form = None if sampling.tool_choice.mode == "none" else syntax.calls
        reasoning = syntax.reasoning
        if reasoning is not None and reasoning.begun and _is_forced(sampling):
            reasoning = None
        tags = [
            *(form.tags if form else ()),
            *((reasoning.open, reasoning.close) if reasoning else ()),
        ]
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._at_limit = at_limit
        self._control_tags = tuple(tag for tag in tags if tag in tokenizer.special_tokens)
        self._detokenizer = Detokenizer(tokenizer, visible=self._control_tags)
        self._splitter = ReasoningSplitter(reasoning)
        names = sampling.tool_choice.names
        barred = syntax.tools.difference(names) if names else ()
        self._parser = None if form is None else CallParser(form, syntax.tools, barred)
        self._matcher = StopMatcher(sampling.stop)
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._num_calls = 0
        self._last = OutputPiece("")
        self.num_tokens = 0

    def push(self, token_id: int, logprobs: TokenLogprobs | None = None) -> tuple[OutputPiece, ...]:
        """Feed one more token; returns the pieces to send, none while a character, a tag or a stop
        string is half done.

        Tokens that came with what was held back go out with the next piece, each once. Stop ids
        never become text, not even with `ignore_eos`. After a piece with `finish` nothing may be
        pushed.
        """
        ends_turn = token_id in self._tokenizer.stop_ids
        if ends_turn and not self._sampling.ignore_eos:
            return self._end([], "stop")
        self.num_tokens += 1
        self._token_ids.append(token_id)
        if logprobs is not None:
            self._logprobs.append(self._with_text(logprobs))
        pieces: list[OutputPiece] = []
        text = "" if ends_turn else self._detokenizer.push((token_id,))
        if text and self._split_reasoning(self._splitter.push(text), pieces):
            return self._with_tokens(pieces)
        if self.num_tokens >= self._sampling.max_tokens:
            return self._end(pieces, self._at_limit)
        return self._with_tokens(pieces)

    def _end(self, pieces: list[OutputPiece], reason: FinishReason) -> tuple[OutputPiece, ...]:
        """The last pieces: what was held back. Half a character is no text, and neither is half a
        tag if the model was interrupted in it."""
        cut = reason != "stop"
        over = self._split_reasoning(self._splitter.end(cut=cut), pieces)
        if not over and self._parser is not None:
            over = self._add_events(self._parser.end(cut=cut), pieces)
        if not over:
            self._flush_stops(pieces)
            last = pieces.pop() if pieces else self._empty_piece(pieces)
            pieces.append(replace(last, finish=reason))
        return self._with_tokens(pieces)

    # Stages: each appends to `pieces`, and returns whether the answer is over ---------------------

    def _split_reasoning(self, parts: Iterable[ReasoningText], pieces: list[OutputPiece]) -> bool:
        for part in parts:
            if part.thinking:
                pieces.append(OutputPiece(part.text, thinking=True))
            elif self._add_events(
                [Text(part.text)] if self._parser is None else self._parser.push(part.text), pieces
            ):
                return True
        return False

    def _add_events(self, events: Iterable[CallEvent], pieces: list[OutputPiece]) -> bool:
        for event in events:
            match event:
                case Text():
                    if self._match_stops(event.text, pieces):
                        return True
                case CallBegin():
                    self._flush_stops(pieces)
                    if self._num_calls and not self._sampling.tool_choice.parallel:
                        pieces.append(replace(self._empty_piece(pieces), finish="stop"))
                        return True
                    self._num_calls += 1
                    pieces.append(
                        OutputPiece("", call=CallPiece(self._num_calls - 1, event.name, ""))
                    )
                case CallArguments():
                    pieces.append(
                        OutputPiece("", call=CallPiece(self._num_calls - 1, None, event.text))
                    )
        return False

    def _match_stops(self, text: str, pieces: list[OutputPiece]) -> bool:
        for tag in self._control_tags:
            text = text.replace(tag, "")
        matched = self._matcher.push(text)
        if matched.stop is not None:
            pieces.append(OutputPiece(matched.text, finish="stop_sequence", stop=matched.stop))
        elif matched.text:
            pieces.append(OutputPiece(matched.text))
        return matched.stop is not None

    def _flush_stops(self, pieces: list[OutputPiece]) -> None:
        """Add the text held back as a possible stop string: no text follows it."""
        if held := self._matcher.flush():
            pieces.append(OutputPiece(held))

    # Tokens ---------------------------------------------------------------------------------------

    def _empty_piece(self, pieces: list[OutputPiece]) -> OutputPiece:
        """An empty piece of the kind of the last one."""
        last = pieces[-1] if pieces else self._last
        call = None if last.call is None else CallPiece(last.call.index, None, "")
        return OutputPiece("", thinking=last.thinking, call=call)

    def _with_tokens(self, pieces: list[OutputPiece]) -> tuple[OutputPiece, ...]:
        """The pieces, all tokens since the last ones with the first."""
        if not pieces:
            return ()
        pieces[0] = replace(
            pieces[0], token_ids=tuple(self._token_ids), logprobs=tuple(self._logprobs)
        )
        self._token_ids, self._logprobs, self._last = [], [], pieces[-1]
        return tuple(pieces)

    def _with_text(self, logprobs: TokenLogprobs) -> TokenLogprobs:
        def spell(one: TokenLogprob) -> TokenLogprob:
            return msgspec.structs.replace(one, text=self._tokenizer.token_bytes(one.token_id))

        return TokenLogprobs(spell(logprobs.chosen), tuple(map(spell, logprobs.top)))


def _is_forced(sampling: Sampling) -> bool:
    """True if the answer must be a call from its first token on, without reasoning before it."""
    return sampling.tool_choice.mode == "required"
