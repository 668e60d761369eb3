"""An upstream's answer holds no order to a proxy or a browser, and not the gateway's key."""

from __future__ import annotations

import pytest
import structlog

from gateway.operate.logs import log_record
from gateway.upstream.redaction import MASK, Redaction
from tests.fakes.upstream import SSE, Say
from tests.gateway.proxying import CLAUDE, GPT, proxying

MESSAGES, CHAT = "/v1/messages", "/v1/chat/completions"
KEY = 'sk-up"0123/45\\6789abcdef'
ORDERS = {
    "X-Accel-Redirect": "/internal",
    "X-Accel-Buffering": "yes",
    "X-Sendfile": "/etc/passwd",
    "X-Reproxy-URL": "http://elsewhere",
    "Clear-Site-Data": '"*"',
    "Cache-Control": "public, max-age=31536000",
    "CDN-Cache-Control": "public",
    "Surrogate-Control": "max-age=9",
    "Expires": "Thu, 01 Dec 2094 16:00:00 GMT",
    "Set-Cookie": "a=b",
    "Set-Cookie2": "a=b",
    "Location": "http://elsewhere",
    "Refresh": "0; url=http://elsewhere",
    "Link": "</x>; rel=preload",
    "Service-Worker-Allowed": "/",
    "Access-Control-Allow-Origin": "*",
    "WWW-Authenticate": "Basic",
    "Strict-Transport-Security": "max-age=1",
    "Public-Key-Pins": "x",
    "Report-To": "{}",
    "NEL": "{}",
    "Alt-Svc": "h3",
    "Warning": "199",
    "Age": "7",
    "X-Whatever": "1",
}
FACTS = {
    "retry-after": "3",
    "x-should-retry": "true",
    "anthropic-ratelimit-tokens-remaining": "9",
    "x-ratelimit-remaining-requests": "8",
    "openai-processing-ms": "7",
    "x-envoy-upstream-service-time": "6",
}


@pytest.mark.parametrize("status", [200, 403, 429])
@pytest.mark.parametrize("stream", [False, True])
async def test_only_what_is_listed_passes(status: int, stream: bool) -> None:
    """Of whole answers, streams and errors."""
    kind = SSE if stream else {"Content-Type": "application/json"}
    say = Say((b"data: {}\n\n" if stream else b"{}",), status, {**kind, **ORDERS, **FACTS})
    async with proxying(openai=say) as passed:
        answer = await passed.post(CHAT, {"model": GPT, "messages": [], "stream": stream})
        assert answer.status == status
        assert {name: answer.headers[name] for name in FACTS} == FACTS
        ours = {"Cache-Control", "X-Accel-Buffering"}  # which the gateway says itself
        assert not (set(ORDERS) - ours) & set(answer.headers)
        assert "public" not in answer.headers["Cache-Control"]
        assert answer.headers.get("X-Accel-Buffering") != "yes"


@pytest.mark.parametrize("status", [400, 403, 500])
@pytest.mark.parametrize("quoted", [KEY, KEY.replace("\\", "\\\\").replace('"', '\\"')])
async def test_an_error_that_quotes_the_key(status: int, quoted: str) -> None:
    """Whole or in two pieces, in body and headers, as it stands or escaped; the rest passes."""
    body = f'{{"error":{{"message":"key {quoted} may not; sk-up"}}}}'.encode()
    hidden = f'{{"error":{{"message":"key {MASK} may not; sk-up"}}}}'.encode()
    told = {"Content-Type": "application/json", "x-ratelimit-key": f"of {KEY}"}
    for pieces in ((body,), (body[:30], body[30:]), tuple(bytes([byte]) for byte in body)):
        async with proxying(Say(pieces, status, told), claude=f", api_key: '{KEY}'") as passed:
            answer = await passed.post(MESSAGES, {"model": CLAUDE, "messages": []})
            assert (answer.status, answer.body) == (status, hidden)
            assert answer.headers["x-ratelimit-key"] == f"of {MASK}"


async def test_a_stream_that_quotes_the_key() -> None:
    """In an error event; other events pass as they come, and to the byte."""
    event = b'data: {"choices":[],"sk-u":"sk-up"}\n\n'
    error = b'data: {"error":{"message":"' + KEY.encode() + b'"}}\n\n'
    say = Say((event, error[:35], error[35:], event), headers=SSE)
    async with proxying(openai=say, gpt=f", api_key: '{KEY}'") as passed:
        answer = await passed.post(CHAT, {"model": GPT, "messages": [], "stream": True})
        assert answer.body == event + error.replace(KEY.encode(), MASK.encode()) + event


@pytest.mark.parametrize(
    ("key", "status"), [("EMPTY", 200), ("sk-no-key-required", 200), ("k", 403)]
)
async def test_words_that_are_no_secret_stay(key: str, status: int) -> None:
    """A model may write what servers without keys are given."""
    body = f'{{"x":"{key} {key}"}}'.encode()
    async with proxying(openai=Say((body,), status), gpt=f", api_key: {key}") as passed:
        answer = await passed.post(CHAT, {"model": GPT, "messages": []})
        assert answer.body == body


def test_no_more_is_held_back_than_may_be_the_key() -> None:
    """Events, which end in an empty line, go on at once."""
    redaction = Redaction("s" * 30, 200)
    assert redaction.take(b"data: sss\n\n") == b"data: sss\n\n"
    assert redaction.take(b"ass") == b"a"
    assert redaction.take(b"t") == b"sst"
    assert redaction.take(b"s" * 31) == MASK.encode()
    assert redaction.rest() == b"s"
    assert redaction.rest() == b""


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STATE = "congo=t61rcWkgMzE, rojo=00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("sent", "state", "logged"),
    [
        (PARENT, STATE, [PARENT, STATE]),
        (PARENT, "", [PARENT]),
        (PARENT, "a secret prompt", [PARENT]),
        (f"01{PARENT[2:]}-more", "a=1", [f"01{PARENT[2:]}", "a=1"]),
        (f"{PARENT}-secret", "a=1", []),
        ("secret", "a=1", []),
        (PARENT.replace("b7ad6b7169203331", "0" * 16), "a=1", []),
    ],
)
async def test_a_trace_goes_on_and_is_logged(
    sent: str, state: str, logged: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Upstreams get what the client sent; the log what has the standard's form."""
    structlog.reset_defaults()
    async with proxying() as passed:
        more = {"tracestate": state} if state else {}
        await passed.post(CHAT, {"model": GPT, "messages": []}, traceparent=sent, **more)
        (got,) = passed.openai.got
        assert (got.headers["traceparent"], got.headers.get("tracestate", "")) == (sent, state)
        record = passed.served.records[-1]
        assert [text for text in (record.traceparent, record.tracestate) if text] == logged
        log_record(record)
        line = "".join(capsys.readouterr())
        assert all(text in line for text in logged)
        assert "secret" not in line
