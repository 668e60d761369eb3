"""Splits a streamed answer into reasoning and text. Knows no tokens and no calls."""

from __future__ import annotations

from dataclasses import dataclass

from engine.output.partial import num_partial
from engine.prompt.reasoning import THINK, Reasoning


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """More of the reasoning, or of the answer; never empty."""

    text: str
    thinking: bool


class ReasoningSplitter:
    """Splits one answer. Reasoning stands in front of the answer or nowhere, without the newlines
    around it.

    What may be half a tag is held back until it is certain. Where the answer is cut into pieces
    changes nothing.
    """

    def __init__(self, reasoning: Reasoning | None) -> None:
        self._tags = reasoning or THINK
        self._state = "answer" if reasoning is None else "thinking" if reasoning.begun else "start"
        self._held = ""
        self._is_blank = True
        self._may_open = self._tags.begun

    def push(self, text: str) -> list[ReasoningText]:
        """Feed more of the answer; returns the parts that are certain now."""
        self._held += text
        out: list[ReasoningText] = []
        if self._state == "start":
            self._read_start()
        if self._state == "thinking":
            self._read_thinking(out)
        if self._state == "behind":
            self._held = self._held.lstrip("\n")
            self._state = "answer" if self._held else "behind"
        if self._state == "answer" and self._held:
            out.append(ReasoningText(self._held, thinking=False))
            self._held = ""
        return out

    def end(self, *, cut: bool) -> list[ReasoningText]:
        """The rest of an answer that has ended; half a tag at the end of one that was `cut` off is
        left out."""
        held, self._held = self._held, ""
        if self._state == "thinking":
            held = held.strip("\n") if self._is_blank else held.rstrip("\n")
            held = self._without_partial_tag(held) if cut else held
        elif cut and self._state == "start" and held.strip():
            held = ""
        return (
            [ReasoningText(held, thinking=self._state == "thinking")]
            if held and self._state != "behind"
            else []
        )

    def _without_partial_tag(self, thought: str) -> str:
        """Reasoning without half a tag at its end; the opening one may stand at its beginning once
        more."""
        if self._is_blank and self._may_open and self._tags.open.startswith(thought):
            return ""
        num = len(thought) - num_partial(thought, (self._tags.close,))
        return thought[:num].rstrip("\n")

    def _read_start(self) -> None:
        """Look for the opening tag, behind nothing but space."""
        text = self._held.lstrip()
        if text.startswith(self._tags.open):
            self._held, self._state = text[len(self._tags.open) :], "thinking"
        elif not self._tags.open.startswith(text):
            self._state = "answer"

    def _read_thinking(self, out: list[ReasoningText]) -> None:
        if self._is_blank:
            self._held = self._held.lstrip("\n")
            if self._may_open and self._held.startswith(self._tags.open):
                self._held, self._may_open = self._held[len(self._tags.open) :].lstrip("\n"), False
            elif self._may_open and self._tags.open.startswith(self._held):
                return
        thought, close, rest = self._held.partition(self._tags.close)
        num_held = 0 if close else num_partial(thought, (self._tags.close,))
        thought = thought[: len(thought) - num_held].rstrip("\n")
        if thought:
            out.append(ReasoningText(thought, thinking=True))
            self._is_blank = False
        if close:
            self._held, self._state = rest, "behind"
        else:
            self._held = self._held[len(thought) :]
