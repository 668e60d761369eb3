"""Builds a whole answer from the pieces in which the backend sends it. Knows no bill."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from engine.messages import Finished, TextDelta, ToolCallDelta
from engine.types import FinishReason, TokenLogprobs
from gateway.wire.base import Answer, AnswerRun, ToolCall
from policies.pricing import Usage


@dataclass(slots=True)
class RunBuilder:
    """Consecutive pieces of one kind."""

    kind: Literal["thinking", "text", "call"]
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


@dataclass(slots=True)
class AnswerBuilder:
    """One of the answers to a request, while it is generated.

    `num_output` counts its tokens, `num_thinking` those of reasoning. `finished` is None until its
    last event.
    """

    runs: list[RunBuilder] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_output: int = 0
    num_thinking: int = 0
    finished: Finished | None = None

    def add(self, event: TextDelta | ToolCallDelta) -> None:
        """Append a piece to the run it belongs to."""
        self.num_output += len(event.token_ids)
        self.logprobs += event.logprobs
        if isinstance(event, TextDelta):
            kind: Literal["thinking", "text"] = "thinking" if event.thinking else "text"
            self.num_thinking += len(event.token_ids) if event.thinking else 0
            if not (event.text or event.logprobs):
                return
            if not self.runs or self.runs[-1].kind != kind:
                self.runs.append(RunBuilder(kind))
            self.runs[-1].pieces.append(event.text)
            self.runs[-1].logprobs += event.logprobs
        elif event.name is not None:
            self.runs.append(RunBuilder("call"))
            self.calls.append(ToolCall(event.name, event.arguments))
        else:
            call = self.calls[event.index]
            self.calls[event.index] = ToolCall(call.name, call.arguments + event.arguments)

    def build(self, usage: Usage, *, reason: FinishReason | None = None) -> Answer:
        """The whole answer, after its last event. `reason` replaces the engine's."""
        if self.finished is None:
            raise RuntimeError("the answer has not finished")
        runs = tuple(
            AnswerRun(run.kind, "".join(run.pieces), tuple(run.logprobs)) for run in self.runs
        )
        return Answer(
            text="".join([run.text for run in runs if run.kind == "text"]),
            reason=reason or self.finished.reason,
            stop=self.finished.stop,
            usage=usage,
            thinking="".join([run.text for run in runs if run.kind == "thinking"]),
            calls=tuple(self.calls),
            logprobs=tuple(self.logprobs),
            num_thinking=self.num_thinking,
            runs=runs,
        )
