"""From sampled tokens to the text a client reads, and when it ends. Knows no model, cache or threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.prompt.tokenizer import Detokenizer, Tokenizer
from engine.types import FinishReason, Sampling


class Matched(NamedTuple):
    """Text that is certain to be part of the answer, and the stop string that ended it."""

    text: str
    stop: str | None


class StopMatcher:
    """Finds stop strings in text that arrives in pieces, holding back what may be the start of one.

    The stop string that is complete first wins; of those complete at the same character, the longest. So the outcome
    doesn't depend on how the text is cut into pieces. After a stop nothing may be pushed.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""

    def push(self, text: str) -> Matched:
        """What can be shown now. `stop` is set when a stop string is complete; its own text is never shown."""
        text = self._held + text
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            _, start, stop = min(found)
            self._held = ""
            return Matched(text[:start], stop)
        border = len(text) - self._num_held(text)
        self._held = text[border:]
        return Matched(text[:border], None)

    def flush(self) -> str:
        """The text held back, now that no more comes."""
        held, self._held = self._held, ""
        return held

    def _num_held(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        lengths = range(min(longest, len(text)), 0, -1)
        return next((n for n in lengths if any(stop.startswith(text[-n:]) for stop in self._stops)), 0)


@dataclass(frozen=True, slots=True)
class Piece:
    """What one sampled token added to the answer. `finish` is set on the last piece, `stop` when a stop string ended it."""

    text: str
    token_ids: tuple[int, ...]
    finish: FinishReason | None = None
    stop: str | None = None


class Answer:
    """One answer in the making.

    `num_tokens` counts what was sampled, without the end-of-turn token that ends the answer: the number of ids in all
    pieces. `at_limit` is the reason given when `sampling.max_tokens` is reached.
    """

    def __init__(self, tokenizer: Tokenizer, sampling: Sampling, at_limit: FinishReason) -> None:
        self._sampling = sampling
        self._stop_ids = tokenizer.stop_ids
        self._at_limit = at_limit
        self._detokenizer = Detokenizer(tokenizer)
        self._matcher = StopMatcher(sampling.stop)
        self._unsent: list[int] = []
        self.num_tokens = 0

    def push(self, token_id: int) -> Piece | None:
        """What to send after one more token: None while a character or a stop string is half done.

        Token ids that came with held-back text go out with the next piece. Stop ids never become text, not even with
        `ignore_eos`.
        """
        ends_turn = token_id in self._stop_ids
        if ends_turn and not self._sampling.ignore_eos:
            return self._end("stop")
        self.num_tokens += 1
        self._unsent.append(token_id)
        matched = self._matcher.push("" if ends_turn else self._detokenizer.push((token_id,)))
        if matched.stop is not None:
            return self._piece(matched.text, "stop_sequence", matched.stop)
        if self.num_tokens >= self._sampling.max_tokens:
            return self._end(self._at_limit, matched.text)
        return self._piece(matched.text) if matched.text else None

    def _end(self, reason: FinishReason, text: str = "") -> Piece:
        """The last piece. A character that was never finished is left out: half of one is no text."""
        return self._piece(text + self._matcher.flush(), reason)

    def _piece(self, text: str, finish: FinishReason | None = None, stop: str | None = None) -> Piece:
        token_ids, self._unsent = tuple(self._unsent), []
        return Piece(text, token_ids, finish, stop)
