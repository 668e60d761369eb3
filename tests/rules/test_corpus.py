"""The comparison of two recordings: what it leaves out, what it never misses,
and that the corpus says each name once.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tools.corpus.__main__ import main
from tools.corpus.cases import POLICIES, stages
from tools.corpus.cases.bodies import chat, get
from tools.corpus.compare import CONTROLS, compare, unseen_changes
from tools.corpus.normalize import lines
from tools.corpus.stages import Stage
from tools.corpus.stages import record as record_stages
from tools.corpus.steps import Record, Sent, as_text, load, save
from tools.corpus.streams import settled

ROOT = Path(__file__).parents[2]
UUID, OTHER_UUID = "0199a3c2-7e51-7b00-8000-0123456789ab", "0199a3c2-7e52-7b00-9000-aaaaaaaaaaaa"
JSON = ("Content-Type", "application/json")
SSE = ("Content-Type", "text/event-stream")


def record(
    body: str, *headers: tuple[str, str], status: int = 200, passed: tuple[Sent, ...] = ()
) -> Record:
    sent = Sent("POST", "/v1/messages", (), "{}")
    return Record(
        "stage/name", sent, status, (*headers, ("Date", "Mon"), ("Server", "pcg")), body, passed
    )


def same(one: Record, other: Record) -> bool:
    return compare([one], [other]) == []


def chunk(text: str, *, index: int = 0, logprobs: str = "null", reason: str = "null") -> str:
    """An event of Chat Completions."""
    delta = '{"content":"' + text + '"}' if reason == "null" else "{}"
    choice = f'{{"index":{index},"delta":{delta},"logprobs":{logprobs},"finish_reason":{reason}}}'
    return f'data: {{"object":"chat.completion.chunk","choices":[{choice}]}}\n\n'


def delta(number: int, text: str, kind: str = "output_text") -> str:
    """An event of Responses."""
    name = f"response.{kind}.delta"
    return (
        f'event: {name}\ndata: {{"type":"{name}","sequence_number":{number},"delta":"{text}"}}\n\n'
    )


@pytest.mark.parametrize(
    ("former", "latter"),
    [
        (f'{{"id":"{UUID}"}}', f'{{"id":"{OTHER_UUID}"}}'),
        (
            f'{{"id":"req_{UUID.replace("-", "")}"}}',
            f'{{"id":"req_{OTHER_UUID.replace("-", "")}"}}',
        ),
        ('{"id":"msgbatch_' + "a" * 24 + '"}', '{"id":"msgbatch_' + "b" * 24 + '"}'),
        ('{"id":"resp_' + "a" * 48 + '"}', '{"id":"resp_' + "b" * 48 + '"}'),
        ("http://127.0.0.1:40001/v1", "http://127.0.0.1:50002/v1"),
        ('{"engine_step_seconds_total":0.25}', '{"engine_step_seconds_total":1e-05}'),
        (
            '# HELP x\npcg_ttft_seconds_sum{a="b"} 1.5\n',
            '# HELP x\npcg_ttft_seconds_sum{a="b"} 2.5\n',
        ),
    ],
)
def test_ids_and_times_are_left_out(former: str, latter: str) -> None:
    """Bodies that differ in an id, a duration or a place alone are the same; so are their
    lengths."""
    one = record(former, ("Content-Length", str(len(former))))
    other = record(latter, ("Content-Length", str(len(latter))))
    assert same(
        one, replace(other, headers=(*other.headers[:-2], ("Date", "Tue"), other.headers[-1]))
    )
    assert not same(one, replace(other, headers=other.headers[:-1]))


def test_server_timing_keeps_its_names() -> None:
    """Durations are left out, what was timed and in which order is not."""
    one = record("{}", ("Server-Timing", "read;dur=0.1, parse;dur=12.0"))
    assert same(one, record("{}", ("Server-Timing", "read;dur=9.9, parse;dur=0.0")))
    assert not same(one, record("{}", ("Server-Timing", "parse;dur=0.1, read;dur=12.0")))


def test_one_id_in_two_places_stays_one() -> None:
    """Where a body names one id twice and the other two ids, that is a difference."""
    assert not same(record(f"{UUID} {UUID}"), record(f"{UUID} {OTHER_UUID}"))
    assert same(record(f"{UUID} {OTHER_UUID}"), record(f"{OTHER_UUID} {UUID}"))


@pytest.mark.parametrize(
    ("former", "latter"),
    [
        ('{"created":1796000000}', '{"created":1796000001}'),
        ('{"usage":{"input_tokens":7}}', '{"usage":{"input_tokens":8}}'),
        ('{"a":1,"b":2}', '{"b":2,"a":1}'),
        ('{"a":1}', '{"a": 1}'),
        ('{"key":"' + "a" * 48 + '"}', '{"key":"' + "b" * 48 + '"}'),
        ('# HELP x\npcg_requests_total{a="b"} 1.0\n', '# HELP x\npcg_requests_total{a="b"} 2.0\n'),
        ("Grüß", "Gruß"),
    ],
)
def test_everything_else_is_a_difference(former: str, latter: str) -> None:
    """Counts, order, white space, dates of the test's clock and keys of the cache are compared as
    they are."""
    assert not same(record(former), record(latter))


def test_upstreams_must_get_the_same_bytes() -> None:
    """What was passed on is part of the answer."""
    sent = Sent("POST", "/v1/x", (("accept-encoding", "identity"),), '{"a":1}')
    assert same(record("{}", passed=(sent,)), record("{}", passed=(sent,)))
    assert not same(
        record("{}", passed=(sent,)), record("{}", passed=(replace(sent, body='{"a": 1}'),))
    )
    assert not same(record("{}", passed=(sent,)), record("{}"))


def test_deltas_are_joined() -> None:
    """Where a stream is cut makes no difference, what it says does; later events are numbered as if
    it had not been cut."""
    many = delta(4, "a") + delta(5, '\\"b') + delta(6, "c") + delta(7, "done", "refusal")
    assert settled(many) == delta(4, 'a\\"bc') + delta(5, "done", "refusal")
    assert same(record(many, SSE), record(delta(4, 'a\\"bc') + delta(5, "done", "refusal"), SSE))
    assert not same(record(many, SSE), record(delta(4, "abc") + delta(5, "done", "refusal"), SSE))
    assert not same(
        record(many, SSE), record(delta(4, 'a\\"bc') + delta(6, "done", "refusal"), SSE)
    )


def test_choices_are_put_side_by_side() -> None:
    """Which choice is told first makes no difference; the events of one keep their order, and a
    trailer its place."""
    end = "data: [DONE]\n\n"
    mixed = (
        chunk("a")
        + chunk("x", index=1)
        + chunk("b")
        + chunk("", reason='"stop"')
        + chunk("y", index=1)
        + end
    )
    assert settled(mixed) == chunk("ab") + chunk("", reason='"stop"') + chunk("xy", index=1) + end
    assert settled(end + chunk("a")) == end + chunk("a")


def test_log_probabilities_are_joined() -> None:
    """Lists of log-probabilities grow with their deltas, byte for byte."""
    one, two = '{"token":"]\\"","top_logprobs":[{"a":1}]}', '{"token":"b","top_logprobs":[]}'
    cut = chunk("a", logprobs=f'{{"content":[{one}],"refusal":null}}') + chunk(
        "b", logprobs=f'{{"content":[{two}],"refusal":null}}'
    )
    assert settled(cut) == chunk("ab", logprobs=f'{{"content":[{one},{two}],"refusal":null}}')


def test_the_head_of_a_call_takes_its_arguments() -> None:
    """A call's first delta holds as much of the arguments as there is by then."""

    def call(head: str, name: str, arguments: str) -> str:
        told = f'{{"index":0,{head}"function":{{{name}"arguments":"{arguments}"}}}}'
        choice = (
            f'{{"index":0,"delta":{{"tool_calls":[{told}]}},"logprobs":null,"finish_reason":null}}'
        )
        return f'data: {{"object":"chat.completion.chunk","choices":[{choice}]}}\n\n'

    head, name = '"id":"call_1","type":"function",', '"name":"f",'
    assert settled(call(head, name, "") + call("", "", "{}") + call("", "", "")) == call(
        head, name, "{}"
    )
    assert settled(call("", "", "{}") + call(head.replace("1", "2"), name, "x")).count("\n\n") == 1


def test_no_control_is_missed() -> None:
    """Every kind of change is seen in every kind of answer: errors, streams, empty bodies,
    metrics."""
    records = [
        record('{"id":"x"}', JSON),
        record("", JSON, status=404),
        record(delta(4, "a") + delta(5, "b"), SSE),
        record("# HELP x\npcg_requests_total 1.0\n"),
        record(as_text(b"\xff")),
    ]
    assert unseen_changes(records) == []
    assert len(CONTROLS) >= 5


def test_a_difference_is_shown_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program ends with 0 for a recording and itself, and with 1 and a readable diff where one
    answer is another."""
    former, latter = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    records = [
        record('{"usage":{"input_tokens":7}}', JSON),
        replace(record("{}"), name="stage/other"),
    ]
    save(former, records)
    assert load(former) == records
    assert run("compare", former, former) == 0
    save(latter, [replace(records[0], body=records[0].body.replace("7", "8"))])
    capsys.readouterr()
    assert run("compare", former, latter) == 1
    shown = capsys.readouterr().out
    assert '-"input_tokens":7}}\n+"input_tokens":8}}\n' in shown
    assert "stage/other is in the former recording only" in shown


def run(verb: str, *paths: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["corpus", verb, *map(str, paths)])
        return main()


def test_the_corpus_is_large_and_names_each_request_once() -> None:
    """At least 300 requests, under names that are their own; every route of the gateway is among
    them."""
    names = [f"{stage.name}/{step.name}" for stage in stages() for step in stage.steps]
    assert len(names) == len(set(names)) >= 300
    asked = {
        (step.method, step.path.partition("?")[0]) for stage in stages() for step in stage.steps
    }
    assert asked >= {
        *(
            ("POST", f"/v1/{name}")
            for name in ("messages", "chat/completions", "responses", "completions", "embeddings")
        ),
        *(
            ("POST", f"/v1/{name}")
            for name in ("messages/count_tokens", "responses/compact", "responses/input_tokens")
        ),
        *(
            ("GET", f"/{name}")
            for name in ("", "v1/models", "livez", "readyz", "health", "version", "metrics")
        ),
        *(("POST", f"/admin/cache/{name}") for name in ("flush", "pin", "unpin", "verify")),
        *(("GET", f"/admin/cache/{name}") for name in ("stat", "entries")),
        *(("GET", "/v1/messages/batches"), ("POST", "/v1/messages/batches")),
    }


def test_lines_lose_nothing_but_what_is_left_out() -> None:
    """Joined again, the lines of a body are the body."""
    body = '{"a":[{"b":"x, y"},["c"]],"d":{}}'
    told = lines(record(body))
    assert "".join(told[told.index("") + 1 :]) == body


@pytest.mark.slow
def test_it_is_the_checkout_that_answers(tmp_path: Path) -> None:
    """Two recordings of one checkout are the same; a copy of it that greets otherwise differs in
    the greeting alone."""
    steps = (
        get("greeting", "/"),
        chat("passed", model="x"),
        chat("streamed", model="x", stream=True),
    )
    asked = [Stage("relay", (POLICIES / "relay.yaml").read_text(encoding="utf-8"), steps)]
    for package in ("gateway", "engine", "policies"):
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "hatch_build.py"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    former = list(record_stages(tmp_path, asked))
    assert [answer.status for answer in former] == [200, 200, 200]
    assert [len(answer.passed) for answer in former] == [0, 1, 1]
    assert compare(former, list(record_stages(tmp_path, asked))) == []
    changed = [
        path
        for path in (tmp_path / "gateway").rglob("*.py")
        if swapped(path, "Prompt Cache Gateway\\n", "Hello\\n")
    ]
    assert changed
    assert [
        difference.name for difference in compare(former, list(record_stages(tmp_path, asked)))
    ] == ["relay/greeting"]


def swapped(path: Path, old: str, new: str) -> bool:
    """Whether a file had the text, and then has the other."""
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(old, new), encoding="utf-8")
    return old in text
