"""Ask two questions about one long document through the official `openai` SDK.

Caching needs no mark in this format.

    python examples/openai_sdk.py [http://127.0.0.1:8080]

The address may also come from PCG_BASE_URL, an API key from PCG_API_KEY. Exits with 0 if the second
request reported cached tokens, with 1 if it did not.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from pathlib import Path

from openai import OpenAI
from openai.types import CompletionUsage

DOCUMENT = Path(__file__).parent / "documents" / "prompt-caching.txt"
QUESTIONS = ("What does decode do?", "What is a tier?")


def ask(client: OpenAI, system: str, question: str) -> CompletionUsage:
    """Stream one answer to the terminal and return the usage that the last chunk carries."""
    begin_s = time.perf_counter()
    stream = client.chat.completions.create(
        model="gpt-5.1",
        max_completion_tokens=24,
        messages=[{"role": "system", "content": system}, {"role": "user", "content": question}],
        stream=True,
        stream_options={"include_usage": True},
    )
    print(f"\n> {question}")
    first_s, usage = None, None
    for chunk in stream:
        usage = chunk.usage or usage
        if chunk.choices and chunk.choices[0].delta.content:
            first_s = first_s or time.perf_counter() - begin_s
            print(chunk.choices[0].delta.content, end="", flush=True)
    if usage is None:
        raise RuntimeError("the stream ended without usage")
    print(f"\n  {first_s or 0:.2f} s to the first text")
    print(f"  prompt {usage.prompt_tokens}, of which cached {cached_tokens(usage)}")
    return usage


def cached_tokens(usage: CompletionUsage) -> int:
    """Tokens read from the cache; OpenAI reports them as a detail of the prompt."""
    details = usage.prompt_tokens_details
    return (details.cached_tokens or 0) if details else 0


def main() -> int:
    base_url = (
        sys.argv[1]
        if len(sys.argv) > 1
        else os.environ.get("PCG_BASE_URL", "http://127.0.0.1:8080")
    )
    client = OpenAI(
        base_url=f"{base_url}/v1", api_key=os.environ.get("PCG_API_KEY", "any"), timeout=300
    )
    # The first line is new in every run, so that the first question is really cold.
    system = f"Edition {uuid.uuid4().hex}.\n\n{DOCUMENT.read_text(encoding='utf-8')}"
    cold, warm = (ask(client, system, question) for question in QUESTIONS)
    read = cached_tokens(warm) > cached_tokens(cold)
    print(
        "\nwarm: the second question read the document from the cache"
        if read
        else "\ncold: nothing was read"
    )
    return 0 if read else 1


if __name__ == "__main__":
    sys.exit(main())
