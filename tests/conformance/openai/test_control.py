"""A server that pretends must fail the suite's rules: the control that they look at the cache,
not at the form of an answer.
"""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conformance.openai import test_first, test_rules
from tests.conformance.openai.asking import Api, Asker, Served, filler, user

NUM_CACHED, NUM_PROMPT = 100, 110
ABOUT_NO_CACHE: Final = {"test_counting_is_what_is_billed"}
RULES: Final[dict[str, Callable[..., None]]] = {
    name: rule
    for module in (test_rules, test_first)
    for name, rule in inspect.getmembers(module, inspect.isfunction)
    if name.startswith("test_") and name not in ABOUT_NO_CACHE
}


def chat_body(details: dict[str, int]) -> dict[str, Any]:
    message = {"role": "assistant", "content": "Hello"}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": NUM_PROMPT,
            "completion_tokens": 1,
            "total_tokens": NUM_PROMPT + 1,
            "prompt_tokens_details": details,
        },
    }


def response_body(details: dict[str, int]) -> dict[str, Any]:
    by_ttl = {"ttl_30m_tokens": details["cache_write_tokens"], "ttl_12h_tokens": 0}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": "completed",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": NUM_PROMPT,
            "input_tokens_details": details | {"cache_write_tokens_details": by_ttl},
            "output_tokens": 1,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": NUM_PROMPT + 1,
        },
        "prompt_cache_diagnostics": {"type": "cache_hit"},
    }


class Canned(BaseHTTPRequestHandler):
    """Answers every request alike, by either API, body and headers agreeing; `read` and `written`
    tokens each time."""

    read = written = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        details = {"cached_tokens": self.read, "cache_write_tokens": self.written}
        body = response_body(details) if self.path.endswith("responses") else chat_body(details)
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.send_header("pcg-cache-read-tokens", str(self.read))
        self.send_header("pcg-cache-write-tokens", str(self.written))
        self.send_header("pcg-prefill-skipped-tokens", str(self.read))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


class AlwaysCold(Canned):
    """Writes for ever."""

    written = NUM_CACHED


class AlwaysWarm(Canned):
    """Reads what nobody wrote."""

    read = NUM_CACHED


@contextmanager
def serving(kind: type[Canned], clock: Path) -> Iterator[Served]:
    """The server, and a clock that it does not look at."""
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield Served(f"http://127.0.0.1:{server.server_port}", clock)
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(AlwaysWarm, tmp_path_factory.mktemp("warm") / "now") as served:
        yield served


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(AlwaysCold, tmp_path_factory.mktemp("cold") / "now") as served:
        yield served


def fails(rule: Callable[..., None], served: Served, api: Api) -> bool:
    """Whether a test of the suite fails against the server by what it looks for, and not for want
    of an answer."""
    with served.client() as gpt:
        parts: dict[str, Any] = {
            "served": served,
            "ask": Asker(served, api, False),
            "chat": Asker(served, "chat", False),
            "responses": Asker(served, "responses", False),
            "gpt": gpt,
        }
        try:
            rule(**{name: parts[name] for name in inspect.signature(rule).parameters})
        except (AssertionError, AttributeError):
            return True
    return False


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_canned_answer_has_the_form_of_one(warm: Served, cold: Served, api: Api) -> None:
    """What fails the rules below is what it says of the cache: SDK and suite read it without
    complaint."""
    for served, told in ((warm, (NUM_CACHED, 0)), (cold, (0, NUM_CACHED))):
        found = Asker(served, api, False)(user(filler()))
        assert (found.prompt, (found.read, found.written)) == (NUM_PROMPT, told)


@pytest.mark.parametrize("rule", RULES)
def test_a_canned_server_fails(warm: Served, cold: Served, rule: str) -> None:
    """No rule is kept by both, by either API: one that wants nothing read is broken by the one that
    always reads."""
    apis: tuple[Api, ...] = (
        ("chat", "responses") if "ask" in inspect.signature(RULES[rule]).parameters else ("chat",)
    )
    for api in apis:
        assert fails(RULES[rule], warm, api) or fails(RULES[rule], cold, api)
