"""Ask two questions about one long document through the official `anthropic` SDK,
and see the second one read the cache.

    python examples/anthropic_sdk.py [http://127.0.0.1:8080]

The address may also come from PCG_BASE_URL, an API key from PCG_API_KEY. Exits with 0 if the second
request read what the first one wrote, with 1 if it did not.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from pathlib import Path

from anthropic import Anthropic
from anthropic.types import Usage

DOCUMENT = Path(__file__).parent / "documents" / "prompt-caching.txt"
QUESTIONS = ("What does prefill do?", "What is an entry?")


def ask(client: Anthropic, system: str, question: str) -> Usage:
    """Stream one answer to the terminal; the system text up to its end is marked to be cached for
    five minutes."""
    begin_s = time.perf_counter()
    with client.messages.stream(
        model="claude-sonnet-5-5",
        max_tokens=24,
        system=[{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}],
        messages=[{"role": "user", "content": question}],
    ) as stream:
        print(f"\n> {question}")
        first_s = None
        for text in stream.text_stream:
            first_s = first_s or time.perf_counter() - begin_s
            print(text, end="", flush=True)
        usage = stream.get_final_message().usage
    print(f"\n  {first_s or 0:.2f} s to the first text")
    print(
        f"  read {usage.cache_read_input_tokens}, written {usage.cache_creation_input_tokens}, "
        f"input {usage.input_tokens}"
    )
    return usage


def main() -> int:
    base_url = (
        sys.argv[1]
        if len(sys.argv) > 1
        else os.environ.get("PCG_BASE_URL", "http://127.0.0.1:8080")
    )
    client = Anthropic(base_url=base_url, api_key=os.environ.get("PCG_API_KEY", "any"), timeout=300)
    # The first line is new in every run, so that the first question is really cold.
    system = f"Edition {uuid.uuid4().hex}.\n\n{DOCUMENT.read_text(encoding='utf-8')}"
    cold, warm = (ask(client, system, question) for question in QUESTIONS)
    same = (
        bool(warm.cache_read_input_tokens)
        and warm.cache_read_input_tokens == cold.cache_creation_input_tokens
    )
    print(
        "\nwarm: the second question read the document from the cache"
        if same
        else "\ncold: nothing was read"
    )
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
