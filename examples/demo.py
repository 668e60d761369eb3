"""`make demo`: both official SDKs hold a cold and a warm conversation about a long document,
and a table shows the bill.

    python -m examples.demo [http://127.0.0.1:8080]

Without an address it starts a gateway of its own on a free port and stops it afterwards.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from anthropic import Anthropic
from anthropic.types import MessageParam
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam
from rich.console import Console
from rich.table import Table

from tools.serving import serving

DOCUMENT = Path(__file__).parent / "documents" / "prompt-caching.txt"
MAX_TOKENS = 32
API_KEY = os.environ.get("PCG_API_KEY", "any")
TURNS = (
    ("cold", "In one sentence: what is prompt caching?"),
    ("same conversation", "And what does it not store?"),
    ("new conversation", "In one sentence: what is single flight?"),
)
"""What each SDK asks. The second turn continues the first; the third starts over behind the same
document."""

console = Console(width=None if sys.stdout.isatty() else 110)


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer: when its first text came, its text, and the headers it came with."""

    ttft_s: float
    text: str
    headers: Mapping[str, str]


def document() -> str:
    """The document under a first line that no cache has seen."""
    return f"Edition {uuid.uuid4().hex}.\n\n{DOCUMENT.read_text(encoding='utf-8')}"


def anthropic_turns(base_url: str) -> Iterator[Turn]:
    """Anthropic's format: the end of the document is marked with `cache_control`."""
    client = Anthropic(base_url=base_url, api_key=API_KEY, timeout=600)
    system = document()
    history: list[MessageParam] = []
    for name, question in TURNS:
        history = [
            *([] if name == "new conversation" else history),
            {"role": "user", "content": question},
        ]
        begin_s, first_s, text = time.perf_counter(), None, ""
        with client.messages.stream(
            model="claude-sonnet-5-5",
            max_tokens=MAX_TOKENS,
            system=[{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}],
            messages=history,
        ) as stream:
            for piece in stream.text_stream:
                first_s = first_s or time.perf_counter() - begin_s
                text += piece
            headers = stream.response.headers
        history.append({"role": "assistant", "content": text})
        yield Turn(first_s or 0.0, text, headers)


def openai_turns(base_url: str) -> Iterator[Turn]:
    """OpenAI's format: a breakpoint behind the document; the end of the last message is kept
    without one."""
    client = OpenAI(base_url=f"{base_url}/v1", api_key=API_KEY, timeout=600)
    system: ChatCompletionMessageParam = {
        "role": "system",
        "content": [
            {"type": "text", "text": document(), "prompt_cache_breakpoint": {"mode": "explicit"}}
        ],
    }
    history: list[ChatCompletionMessageParam] = []
    for name, question in TURNS:
        if name != "same conversation":
            history = [system]
        history.append({"role": "user", "content": question})
        begin_s, first_s, text = time.perf_counter(), None, ""
        with client.chat.completions.create(
            model="gpt-5.6-terra", max_completion_tokens=32, messages=history, stream=True
        ) as stream:
            for chunk in stream:
                piece = chunk.choices[0].delta.content if chunk.choices else None
                if piece:
                    first_s = first_s or time.perf_counter() - begin_s
                    text += piece
            headers = stream.response.headers
        history.append({"role": "assistant", "content": text})
        yield Turn(first_s or 0.0, text, headers)


def row(turn: Turn) -> tuple[str, ...]:
    """Counts, time and cost of one turn, as the gateway's headers say."""
    read, written, uncached = (
        int(turn.headers[f"pcg-{kind}-tokens"])
        for kind in ("cache-read", "cache-write", "uncached")
    )
    counts = (read + written + uncached, read, written, uncached)
    costs = (turn.headers["pcg-prompt-cost-usd"], turn.headers["pcg-cost-saved-usd"])
    return (
        *(f"{count:,}" for count in counts),
        f"{turn.ttft_s:.2f} s",
        *(f"{float(cost):.5f}" for cost in costs),
    )


def converse(base_url: str) -> bool:
    """Hold the conversations, print them and the bill; true if every warm turn read something."""
    table = Table(title="What the gateway reported", title_justify="left")
    table.add_column("SDK")
    table.add_column("turn")
    for column in ("prompt", "read", "written", "input", "TTFT", "cost, USD", "saved, USD"):
        table.add_column(column, justify="right")
    warm_reads = []
    for sdk, turns in (
        ("anthropic", anthropic_turns(base_url)),
        ("openai", openai_turns(base_url)),
    ):
        for (name, question), turn in zip(TURNS, turns, strict=True):
            console.print(f"[bold]{sdk}[/bold], {name}: [italic]{question}[/italic]")
            console.print(f"  {' '.join(turn.text.split())} ...", highlight=False, markup=False)
            table.add_row(sdk, name, *row(turn))
            if name != "cold":
                warm_reads.append(int(turn.headers["pcg-cache-read-tokens"]) > 0)
        table.add_section()
    console.print()
    console.print(table)
    console.print(
        "prompt = read + written + input; cost is the prompt's, saved is against paying input "
        "price for all of it"
    )
    return all(warm_reads)


def main() -> int:
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # so that the gateway started here is stopped, too
    given = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("PCG_BASE_URL")
    if given is None:
        console.print("starting a gateway ...")
    with nullcontext(given) if given else serving() as base_url:
        return 0 if converse(base_url) else 1


if __name__ == "__main__":
    sys.exit(main())
