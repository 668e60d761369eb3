"""Policy files: what is accepted, how it is merged, and what is said about mistakes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.keys import key_paths
from policies.load import PolicyError, load_policy, parse_policy
from policies.schema import Policy


def load(text: str, environ: Mapping[str, str] | None = None, folder: Path | None = None) -> Policy:
    """The text as `policy.yaml`."""
    return parse_policy(text, file="policy.yaml", environ=environ or {}, folder=folder or Path())


def problems(text: str, environ: Mapping[str, str] | None = None) -> list[str]:
    """What is said about the text, line by line."""
    with pytest.raises(PolicyError) as caught:
        load(text, environ)
    assert str(caught.value).splitlines() == [str(problem) for problem in caught.value.problems]
    return [str(problem) for problem in caught.value.problems]


PROBLEMS = {
    "unknown key": (
        "caching:\n  unmarked_tll: 5m",
        '2: caching.unmarked_tll: unknown key; did you mean "unmarked_ttl"?',
    ),
    "key of another section": (
        "unmarked_ttl: 5m",
        '1: unmarked_ttl: unknown key; did you mean "caching.unmarked_ttl"?',
    ),
    "nothing similar": ("server: {frobnicate: 1}", "1: server.frobnicate: unknown key"),
    "in a list": (
        "dialects:\n  - match: x\n    min_token: 5",
        '3: dialects.0.min_token: unknown key; did you mean "min_tokens"?',
    ),
    "a share of a disk": (
        "tiers:\n  ssd: {bytes: 50%}",
        '2: tiers.ssd.bytes: must be a size such as 8GiB or 512MiB, not "50%"',
    ),
    "a timeout that is none": (
        "tiers: {redis: {timeout: 0s}}",
        "1: tiers.redis.timeout: must be longer than 0s",
    ),
    "an upstream without a name of its own": (
        "backends: [{name: a}, {name: a}]",
        "1: backends.1.name: another backend or model has this name",
    ),
    "an upstream named like no token": (
        "backends: [{name: 'my vllm'}]",
        "1: backends.0.name: must be a letter, then up to 63 letters, digits or any of . _ -, not "
        '"my vllm"',
    ),
    "an upstream whose name ends in a line break": (
        'backends: [{name: "a\\n"}]',
        "1: backends.0.name: must be a letter, then up to 63 letters, digits or any of . _ -",
    ),
    "a tenant whose name ends in a line break": (
        'tenants: [{name: "a\\n", keys: [k]}]',
        "1: tenants.0.name: must be 1 to 64 letters, digits or any of . _ -",
    ),
    "a device that ends in a line break": (
        'models: [{engine: {device: ["cpu\\n"]}}]',
        '1: models.0.engine.device: must be "auto", "cpu", "cuda" or "cuda:N", or a list of these',
    ),
    "a price list that no header can name": (
        'prices: {version: "a\\nb"}',
        "1: prices.version: must be one line of printable text",
    ),
    "KV that is kept for ever": (
        "caching: {unmarked_ttl: 36501d}",
        "1: caching.unmarked_ttl: must be at most 36500d",
    ),
    "a class that lives for ever": (
        "caching: {ttl_classes: {12h: 100000d}}",
        "1: caching.ttl_classes.12h: must be at most 36500d",
    ),
    "an upstream that serves nothing": (
        "backends: [{models: []}]",
        "1: backends.0.models: at least one model id is needed",
    ),
    "another format": (
        "backends: [{api: gemini}]",
        '1: backends.0.api: must be "anthropic" or "openai", not "gemini"',
    ),
    "a URL with a password": (
        "backends: [{base_url: 'https://me:word@host'}]",
        "1: backends.0.base_url: must be a URL such as http://127.0.0.1:8000 or "
        "https://api.example.com/v1, without user, "
        "query and fragment",
    ),
    "a key of two lines": (
        'backends: [{api_key: "a\nb"}]',
        "1: backends.0.api_key: must be a key of visible ASCII characters without spaces",
    ),
    "tenants' keys upstream": (
        "backends: [{pass_client_key: true}]\ntenants: [{name: a, keys: [k]}]",
        "1: backends.0.pass_client_key: the keys that clients of tenants send are this gateway's: "
        "use api_key",
    ),
    "two keys": (
        "backends: [{pass_client_key: true, api_key: k}]",
        "1: backends.0.pass_client_key: there is an api_key already",
    ),
    "single flight": (
        "caching: {single_flight: {bill: wirte}}",
        '1: caching.single_flight.bill: must be "read" or "write", not "wirte"; did you mean '
        '"write"?',
    ),
    "duplicate": (
        "server:\n  port: 1\n  port: 2",
        "3: server.port: duplicate key, first given on line 2",
    ),
    "duplicate section": (
        "server: {}\neviction: {}\nserver: {}",
        "3: server: duplicate key, first given on line 1",
    ),
    "duration": (
        "caching:\n\n  unmarked_ttl: 5x",
        '3: caching.unmarked_ttl: must be a duration such as 30s, 5m or 1h, not "5x"',
    ),
    "zero lifetime": (
        "caching: {ttl_classes: {5m: 0}}",
        "1: caching.ttl_classes.5m: must be longer than 0s, not 0",
    ),
    "class name": (
        "caching: {ttl_classes: {300s: 300s}}",
        "1: caching.ttl_classes.300s: must be a duration in its shortest form, such as 5m, 30m or "
        "1h",
    ),
    "size": (
        "server: {max_body: 32Mb}",
        '1: server.max_body: must be a size such as 8GiB, 512MiB or 25%, not "32Mb"',
    ),
    "share": (
        "server: {max_body: 5%}",
        '1: server.max_body: must be a size such as 8GiB or 512MiB, not "5%"',
    ),
    "too much": (
        "models: [{engine: {kv_bytes: 120%}}]",
        '1: models.0.engine.kv_bytes: must be at most 100%, not "120%"',
    ),
    "port": ("server: {port: 65536}", "1: server.port: must be at most 65535, not 65536"),
    "negative": (
        "models: [{engine: {max_queue: 0}}]",
        "1: models.0.engine.max_queue: must be at least 1, not 0",
    ),
    "no number": ("server: {port: http}", '1: server.port: must be a whole number, not "http"'),
    "yes is not true": (
        "caching: {automatic: yes}",
        '1: caching.automatic: must be true or false, not "yes"',
    ),
    "true is no number": (
        "server: {port: true}",
        "1: server.port: must be a whole number, not true",
    ),
    "price": (
        "prices: {usd_per_mtok: {input: -3}}",
        "1: prices.usd_per_mtok.input: must be a number, 0 or more, not -3",
    ),
    "choice": (
        "models: [{engine: {exact: atuo}}]",
        '1: models.0.engine.exact: must be "auto", "on" or "off", not "atuo"; did you mean "auto"?',
    ),
    "not a mapping": ("server: 8080", "1: server: must be a mapping"),
    "not a list": ("dialects: {match: x}", "1: dialects: must be a list"),
    "not text": (
        "models: [{name: 135}]",
        "1: models.0.name: must be text (a number needs quotes), not 135",
    ),
    "empty text": ("models: [{name: ''}]", '1: models.0.name: must not be empty, not ""'),
    "device": (
        "models: [{engine: {device: gpu}}]",
        '1: models.0.engine.device: must be "auto", "cpu", "cuda" or "cuda:N", or a list of '
        'these, not "gpu"',
    ),
    "a list": ("- server", "1: must be a mapping of sections such as server: and caching:"),
    "syntax": (
        "server: [",
        "1: not valid YAML: expected the node content, but found '<stream end>'",
    ),
    "two documents": (
        "server: {}\n---\nserver: {}",
        "2: not valid YAML: but found another document",
    ),
    "tag": ("server: !python/x {}", "1: server: tag !python/x has no meaning here"),
    "complex key": ("? [a]\n: 1", "1: keys must be plain names"),
    "no model": ("models: []", "1: models: at least one model is needed, or one of backends"),
    "same model twice": (
        "models:\n  - name: a\n  - name: a",
        "3: models.1.name: another model has this name",
    ),
    "step below a block": (
        "models: [{engine: {block_size: 64, max_step_tokens: 32}}]",
        "1: models.0.engine.max_step_tokens: must be at least block_size (64)",
    ),
    "unknown class": (
        "dialects: [{preset: anthropic, ttl_classes: [5m, 7m]}]",
        "1: dialects.0.ttl_classes.1: caching.ttl_classes has no class 7m",
    ),
    "default not offered": (
        "dialects: [{preset: openai, default_ttl: 5m}]",
        "1: dialects.0.default_ttl: 5m, the default, must be one of ttl_classes (30m, 12h)",
    ),
    "preset's default not offered": (
        "presets: {gemini: {default_ttl: 30m}}",
        "1: presets.gemini.default_ttl: must be one of ttl_classes (5m, 1h)",
    ),
    "equal lifetimes": (
        "caching: {ttl_classes: {1h: 30m}}",
        "1: caching.ttl_classes.1h: must live longer than class 30m",
    ),
    "price of no class": (
        "prices: {multipliers: {write: {2h: 3}}}",
        "1: prices.multipliers.write.2h: caching.ttl_classes has no class 2h",
    ),
    "model price of no class": (
        "prices: {models: [{write: {2h: 3}}]}",
        "1: prices.models.0.write.2h: caching.ttl_classes has no class 2h",
    ),
    "open port": (
        "server:\n  host: 0.0.0.0",
        "2: server.host: no tenants configured: refusing to listen on 0.0.0.0 (see "
        "server.allow_anonymous)",
    ),
    "unset variable": (
        "server: {host: '${ENV:HOST}'}",
        "1: server.host: environment variable HOST is not set",
    ),
    "unreadable file": (
        "server: {host: '${FILE:/nowhere}'}",
        "1: server.host: cannot read file /nowhere: No such file or directory",
    ),
    "no reference": (
        "server: {host: '${HOME}'}",
        "1: server.host: a reference is ${ENV:NAME} or ${FILE:/path}; a plain ${ is written $${",
    ),
}


@pytest.mark.parametrize(("text", "problem"), PROBLEMS.values(), ids=PROBLEMS.keys())
def test_every_mistake_is_named_with_its_line(text: str, problem: str) -> None:
    """One mistake, one problem: file, line, dotted path, what is wrong, what was meant."""
    assert problems(text) == [f"policy.yaml:{problem}"]


def test_all_problems_are_found_at_once_and_in_order() -> None:
    """Duplicates, missing variables and wrong values do not hide each other."""
    text = (
        "server:\n  port: x\n  port: 2\n  hots: a\n  host: ${ENV:NOPE}\ntiers:\n  ssd: {size: "
        "1}\ncaching:\n  usage_mode: exact"
    )
    assert [line.split(": ")[0] + " " + line.split(": ")[1] for line in problems(text)] == [
        "policy.yaml:2 server.port",
        "policy.yaml:3 server.port",
        "policy.yaml:4 server.hots",
        "policy.yaml:5 server.host",
        "policy.yaml:7 tiers.ssd.size",
        "policy.yaml:9 caching.usage_mode",
    ]


def test_columns_point_at_the_value() -> None:
    """For editors; lines and columns count from 1."""
    with pytest.raises(PolicyError) as caught:
        load("server: {port: http}")
    assert (caught.value.problems[0].line, caught.value.problems[0].column) == (1, 16)


def test_a_self_containing_list_is_refused() -> None:
    """YAML can tie a knot; reading it must end."""
    assert "policy.yaml:1: models.0: refers to itself" in problems("models: &m [*m]")


def test_aliases_work() -> None:
    """An anchor is just another way to write the same value."""
    policy = load("server: {sse: {keepalive: &ten 20s, early_headers_after: *ten}}")
    assert policy.server.sse.early_headers_after == 20.0


@pytest.mark.parametrize(
    "text",
    ["", "# nothing", "server:", "models:\ncaching:\n  ttl_classes:", "tenants: []", "---\n{}"],
)
def test_what_is_left_empty_is_the_default(text: str) -> None:
    """A section whose keys are all commented out is no mistake."""
    assert load(text) == load_policy(None, {})


def test_an_empty_section_in_a_list_is_the_default() -> None:
    """Also inside an item of a list."""
    assert load("models:\n  - name: a\n    engine:\n").models[0].engine == Policy().models[0].engine


def test_mappings_are_merged_and_lists_are_replaced() -> None:
    """A file names only what it changes."""
    policy = load("prices: {multipliers: {write: {5m: 1.5}}}\ndialects: [{match: x}]")
    assert [str(value) for value in policy.prices.multipliers.write.values()] == [
        "1.5",
        "1.25",
        "2.0",
        "2.5",
    ]
    assert [entry.match for entry in policy.dialects] == ["x"]
    assert policy.prices.models == load_policy(None, {}).prices.models


def test_an_address_may_stand_in_brackets() -> None:
    """As in a URL; what listens takes it without."""
    assert [
        load(f"server: {{host: '{host}'}}").server.host for host in ("[::1]", "::1", " 127.0.0.1 ")
    ] == [
        "::1",
        "::1",
        "127.0.0.1",
    ]


def test_the_word_none_turns_a_timer_off() -> None:
    """ "none" is not a very long time, it is no timer."""
    sse = load("server: {sse: {keepalive: none, early_headers_after: none}}").server.sse
    assert (sse.keepalive, sse.early_headers_after) == (None, None)


def test_references_are_replaced_by_what_they_name(tmp_path: Path) -> None:
    """Variables, defaults, files (relative to the policy's folder), several in a text, and the
    escape."""
    (tmp_path / "host").write_text("10.0.0.7\n")
    text = (
        "server: {host: '${FILE:host}', port: '${ENV:PORT}', "
        "allow_anonymous: '${ENV:OPEN:-true}', max_body: '${ENV:N}${ENV:U}'}\n"
        "prices: {version: '$${ENV:X} ${ENV:EMPTY:-fallback}${ENV:EMPTY}'}"
    )
    policy = load(text, {"PORT": "99", "N": "4", "U": "KiB", "EMPTY": ""}, tmp_path)
    assert (policy.server.host, policy.server.port, policy.server.allow_anonymous) == (
        "10.0.0.7",
        99,
        True,
    )
    assert policy.server.max_body == 4096
    assert policy.prices.version == "${ENV:X} fallback"


SECRET = "sk-do-not-print-me"


@pytest.mark.parametrize(
    "text",
    [
        "server: {port: '${ENV:SECRET}'}",
        "server: {max_body: '${ENV:SECRET}', host: '${ENV:SECRET}'}",
        "caching: {usage_mode: '${ENV:SECRET}', unmarked_ttl: '${ENV:SECRET}'}",
        "server: '${ENV:SECRET}'",
        "tenants: '${ENV:SECRET}'",
        "tenants: [{name: a, keys: '${ENV:SECRET}'}]",
        f"tenants: [{SECRET}]",
        f"tenants: [{{name: a, keys: {SECRET}}}]",
        f"tenants: [{{name: '{SECRET} and so on', keys: [x]}}]",
        f"tenants: [{{name: a, keys: [{SECRET}]}}, {{name: b, keys: [{SECRET}]}}]",
    ],
)
def test_secrets_are_never_shown(text: str) -> None:
    """Neither what a reference stands for nor anything written near an API key."""
    found = problems(text, {"SECRET": SECRET})
    assert found
    assert SECRET not in "\n".join(found)


def test_overrides_come_last_and_are_named() -> None:
    """What the command line says is checked like the file, and not blamed on it."""
    policy = parse_policy(
        "server: {port: 1}",
        file="f",
        environ={},
        folder=Path(),
        overrides={"server": {"port": 2, "host": None}},
    )
    assert (policy.server.port, policy.server.host) == (2, "127.0.0.1")
    with pytest.raises(PolicyError, match=r"^command line: server\.port: must be a whole number"):
        parse_policy(
            "server: {port: 1}",
            file="f",
            environ={},
            folder=Path(),
            overrides={"server": {"port": "x"}},
        )


def test_files_are_read_from_disk(tmp_path: Path) -> None:
    """With or without a byte order mark; the path given is the path shown."""
    path = tmp_path / "policy.yaml"
    path.write_bytes("\ufeffserver: {port: 9}".encode())
    assert load_policy(path, {}).server.port == 9
    path.write_text("server: {prot: 9}")
    with pytest.raises(PolicyError) as caught:
        load_policy(path, {})
    assert str(caught.value) == f'{path}:1: server.prot: unknown key; did you mean "port"?'


def test_files_that_cannot_be_read_are_problems_too(tmp_path: Path) -> None:
    """No file, or not text."""
    with pytest.raises(PolicyError, match="cannot read: No such file or directory"):
        load_policy(tmp_path / "none.yaml", {})
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PolicyError, match="cannot read: not UTF-8 text"):
        load_policy(binary, {})


def test_a_policy_cannot_be_changed() -> None:
    """Frozen, all the way down to its sections."""
    policy = load_policy(None, {})
    with pytest.raises(ValueError, match="frozen"):
        policy.server.port = 1  # type: ignore[misc]


names = st.sampled_from(
    sorted(
        {path.rpartition(".")[2].removesuffix("[]") for path in key_paths()} | {"5m", "bogus", ""}
    )
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        [
            "auto",
            "none",
            "5m",
            "1h",
            "25%",
            "8GiB",
            "${ENV:X}",
            "${FILE:\0}",
            "9" * 5000,
            "9" * 400 + "h",
        ]
    ),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60)
@given(st.one_of(st.text(max_size=200), st.dictionaries(names, values, max_size=4).map(json.dumps)))
def test_no_text_breaks_the_reader(text: str) -> None:
    """Any text is a policy that answers every question, or a list of problems; nothing else is
    raised."""
    try:
        policy = load(text)
    except PolicyError:
        return
    policy.rules_for("any", "openai")
    policy.prices_for("any")
    policy.resolve_model("any")


@pytest.mark.parametrize(
    "text",
    [
        "[" * 1500,
        f"server: {{port: {'9' * 5000}}}",
        "server: {port: 1e999}",
        f"server: {{body_timeout: {'9' * 400}}}",
    ],
)
def test_absurd_files_are_problems(text: str) -> None:
    """Too deep, too long, too large."""
    assert problems(text)
