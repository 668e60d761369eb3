"""No body holds the event loop:
a real `pcg serve` answers `/livez` at once while it reads each of the worst there are.
"""

from __future__ import annotations

import gzip
import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.gateway.serving import make_policy
from tools.serving import Server, make_home, start

pytestmark = [pytest.mark.engine, pytest.mark.slow]

PROMPT_S: Final = 1.0
"""An answer within this is prompt on a machine that does much else at the time: the loop itself is
held for some ten milliseconds, and was held for seconds before these bodies were bounded and read
beside it."""

MIB: Final = 1024**2
NUM_VALUES: Final = make_policy().server.max_values
REASONING: Final = {
    "type": "reasoning",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "x"}],
}


@dataclass(frozen=True, slots=True)
class Hostile:
    """A request that costs more than it seems to, and the statuses that are right for it."""

    path: str
    body: Callable[[], bytes]
    statuses: tuple[int, ...] = (400,)
    headers: dict[str, str] = field(default_factory=dict)


def messages(**more: Any) -> bytes:
    return orjson.dumps(
        {"model": "claude-x", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
        | more
    )


def responses(**more: Any) -> bytes:
    return orjson.dumps({"model": "gpt-x", "input": "hi", "max_output_tokens": 1} | more)


def chat(**more: Any) -> bytes:
    return orjson.dumps(
        {"model": "gpt-x", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]} | more
    )


def call(i: int) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"c{i}", "name": "f", "arguments": "{}"}


def function(i: int) -> dict[str, Any]:
    return {"type": "function", "function": {"name": f"name{i}"}}


def batch() -> bytes:
    params = {"model": "claude-x", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
    return orjson.dumps(
        {"requests": [{"custom_id": f"i{i}", "params": params} for i in range(NUM_VALUES // 10)]}
    )


def spaced() -> bytes:
    """An image whose base64 is all spaces and letters."""
    source = {"type": "base64", "media_type": "image/png", "data": "A " * (14 * MIB)}
    return messages(messages=[{"role": "user", "content": [{"type": "image", "source": source}]}])


def nests(num: int) -> bytes:
    return b'{"model": "claude-x", "ignored": [' + b"[]," * num + b"[]]}"


HOSTILE: Final[dict[str, Hostile]] = {
    "reasoning items": Hostile(
        "/v1/responses", lambda: responses(input=[REASONING] * 15_000), (200, 400)
    ),
    "gzip of nests": Hostile(
        "/v1/messages",
        lambda: gzip.compress(nests(10_000_000), 9),
        (413,),
        {"content-encoding": "gzip"},
    ),
    "nests for a batch": Hostile("/v1/messages/batches", lambda: nests(10_000_000), (413,)),
    "as many nests as may be": Hostile("/v1/messages", lambda: nests(NUM_VALUES // 2 - 10)),
    "deep": Hostile("/v1/chat/completions", lambda: b'{"a": ' + b"[" * (8 * MIB)),
    "calls": Hostile(
        "/v1/responses", lambda: responses(input=[call(i) for i in range(NUM_VALUES // 6)])
    ),
    "calls to compact": Hostile(
        "/v1/responses/compact", lambda: responses(input=[call(i) for i in range(NUM_VALUES // 6)])
    ),
    "messages": Hostile(
        "/v1/messages",
        lambda: messages(messages=[{"role": "user", "content": "x"}] * (NUM_VALUES // 4)),
    ),
    "messages to count": Hostile(
        "/v1/messages/count_tokens",
        lambda: messages(messages=[{"role": "user", "content": "x"}] * (NUM_VALUES // 4)),
        (200, 400),
    ),
    "tools": Hostile(
        "/v1/chat/completions",
        lambda: chat(tools=[function(i) for i in range(NUM_VALUES // 10)]),
        (200, 400),
    ),
    "token ids": Hostile(
        "/v1/completions",
        lambda: orjson.dumps({"model": "gpt-x", "prompt": [1] * (NUM_VALUES - 10)}),
    ),
    "requests of a batch": Hostile("/v1/messages/batches", batch, (200,)),
    "base64 with spaces": Hostile("/v1/messages", spaced),
    "one long text": Hostile(
        "/v1/messages",
        lambda: messages(messages=[{"role": "user", "content": "lorem " * (5 * MIB)}]),
    ),
    "a text in four bytes a letter": Hostile(
        "/v1/messages",
        lambda: messages(messages=[{"role": "user", "content": "\U0001f600" * (7 * MIB)}]),
    ),
    "quotes": Hostile("/v1/messages", lambda: b'{"a": "' + b'\\"' * (15 * MIB)),
    "many long texts and no end": Hostile(
        "/v1/chat/completions", lambda: chat(user="u" * 4096, x=["lorem ip"] * 200_000)[:-1]
    ),
}


@pytest.fixture(scope="module")
def server(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The command on a free port, over the small model, until the module's tests are over."""
    home = make_home(tmp_path_factory.mktemp("loop") / "home")
    policy = (
        f"models: [{{source: '{small_model}', engine: {{kv_bytes: 256MiB}}}}]\nserver: "
        f"{{drain: {{delay: 0s, timeout: 1s}}}}"
    )
    server = start(home, policy)
    yield server
    server.stop()


@contextmanager
def connected(server: Server) -> Iterator[http.client.HTTPConnection]:
    host, _, port = server.base_url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=240)
    try:
        yield connection
    finally:
        connection.close()


@dataclass(slots=True)
class Probe:
    """Asks for `/livez` over and over, and remembers the longest that took."""

    server: Server
    longest_s: float = 0.0
    num_answers: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        with connected(self.server) as connection:
            while not self.over.is_set():
                begin_s = time.monotonic()
                connection.request("GET", "/livez")
                response = connection.getresponse()
                response.read()
                assert response.status == 200
                self.longest_s = max(self.longest_s, time.monotonic() - begin_s)
                self.num_answers += 1


@contextmanager
def probed(server: Server) -> Iterator[Probe]:
    probe = Probe(server)
    thread = threading.Thread(target=probe.run)
    thread.start()
    try:
        yield probe
    finally:
        probe.over.set()
        thread.join()


def post(
    server: Server, path: str, body: bytes, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    with connected(server) as connection:
        connection.request(
            "POST", path, body, {"content-type": "application/json"} | (headers or {})
        )
        response = connection.getresponse()
        return response.status, orjson.loads(response.read())


def lag(server: Server) -> tuple[float, float]:
    """How often the loop's lateness was measured, and how often it was a second at most."""
    with connected(server) as connection:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    family = next(
        f for f in text_string_to_metric_families(text) if f.name == "pcg_event_loop_lag_seconds"
    )
    by_edge = {sample.labels.get("le"): sample.value for sample in family.samples}
    return by_edge["+Inf"], by_edge["1.0"]


@pytest.mark.parametrize("name", HOSTILE)
def test_health_is_told_at_once_while_a_body_is_read(server: Server, name: str) -> None:
    """Whatever the body, `/livez` is answered promptly, and the caller gets an answer of its own
    format."""
    hostile = HOSTILE[name]
    body = hostile.body()
    with probed(server) as probe:
        status, answer = post(server, hostile.path, body, hostile.headers)
    assert status in hostile.statuses, answer
    assert status == 200 or isinstance(answer["error"]["message"], str)
    assert probe.num_answers
    assert probe.longest_s < PROMPT_S


def test_references_to_a_long_response(server: Server) -> None:
    """Six hundred items of one stored response of 12 MB, each by its name alone."""
    status, first = post(
        server,
        "/v1/responses",
        responses(input=[{"role": "user", "content": "x"}] * 600, metadata={"a": "b" * (12 * MIB)}),
    )
    assert status == 200, first
    owner = first["id"].removeprefix("resp_")
    refs = [{"type": "item_reference", "id": f"msg_{owner}_i{i}"} for i in range(600)]
    with probed(server) as probe:
        status, answer = post(server, "/v1/responses", responses(input=refs))
    assert status == 200, answer
    assert answer["usage"]["input_tokens"] == first["usage"]["input_tokens"]
    assert probe.longest_s < PROMPT_S


def test_the_gateway_measures_its_own_loop(server: Server) -> None:
    """The metric grows while nothing is asked, and has seen no long wait though all of the above
    was."""
    before, _ = lag(server)
    while (now := lag(server))[0] < before + 3:
        pass
    num, num_prompt = now
    assert num_prompt == num
