"""Options that the text formats of OpenAI read for themselves."""

from __future__ import annotations

from gateway.request import WireOptions


class ChatOptions(WireOptions, frozen=True):
    """Of Chat Completions. `include_usage`: a stream ends with a chunk that holds the usage."""

    include_usage: bool = False


class CompletionsOptions(ChatOptions, frozen=True):
    """Of the legacy Completions. `echo` are the prompts, where they stand before their answers."""

    echo: tuple[str, ...] = ()
