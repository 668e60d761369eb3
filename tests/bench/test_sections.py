"""The sections of the benchmark: which run, what fails them,
and that they run at all on a small model.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import pytest
from rich.console import Console

from bench import run
from bench.clients import NUM_CLIENTS, WORKLOADS, ClientFigures, measure_clients, show_clients
from bench.load import LoadFigures
from bench.misses import MissFigures, engine_seconds, measure_misses, show_misses
from bench.run import SECTIONS, Outcome, parse, run_sections
from tools.serving import POLICY, serving

QUIET = Console(quiet=True)


def load(*, duration_s: float = 1.0, num_cached: int = 0) -> LoadFigures:
    """Four requests of ten tokens each."""
    return LoadFigures(4, 400, num_cached, 40, duration_s, 0.1, 0.2, 0.01)


def test_only_the_sections_asked_for_run_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--only` takes names in any order; without it all run; a name that is not there is
    refused."""
    ran: list[str] = []

    def section(name: str, arguments: argparse.Namespace) -> Outcome:
        ran.append(name)
        return Outcome(name)

    for name in SECTIONS:
        monkeypatch.setitem(
            run.SECTIONS, name, lambda arguments, name=name: section(name, arguments)
        )  # type: ignore[arg-type]
    arguments = parse(["--only", "index", "lengths"])
    assert list(run_sections(arguments.only, arguments)) == ran == ["lengths", "index"]
    assert parse([]).only == list(SECTIONS)
    with pytest.raises(SystemExit):
        parse(["--only", "nothing"])


@pytest.mark.parametrize(
    ("share", "num_cached", "good"),
    [(0.02, 0, True), (0.021, 0, False), (0.01, 16, False)],
    ids=["fine", "slow", "hit"],
)
def test_misses_must_be_cheap_misses(share: float, num_cached: int, good: bool) -> None:
    """The cache's share of the time is bounded, and a load that hits measures nothing."""
    rounds = {"kept": [load(duration_s=1.1, num_cached=num_cached)], "no-store": [load()]}
    figures = MissFigures(rounds, share)
    assert figures.cost == pytest.approx(0.1)
    assert show_misses(QUIET, figures) is good


def test_engine_seconds_are_read() -> None:
    """Two counters of the metrics page."""
    text = (
        '# TYPE pcg_engine_cache_seconds counter\npcg_engine_cache_seconds_total{model="m"} 0.5\n'
        '# TYPE pcg_engine_step_seconds counter\npcg_engine_step_seconds_total{model="m"} 50.0\n'
    )
    assert engine_seconds(text) == {"cache": 0.5, "step": 50.0}


@pytest.mark.parametrize(("last_s", "good"), [(0.5, True), (1.0, False)])
def test_more_clients_get_more(last_s: float, good: bool) -> None:
    """Eight clients that get no more tokens per second than one are a failure."""
    figures = [
        ClientFigures(name, num, load(duration_s=last_s if num == NUM_CLIENTS[-1] else 1.0))
        for name in WORKLOADS
        for num in NUM_CLIENTS
    ]
    assert show_clients(QUIET, figures) is good


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.long
async def test_sections_run_on_a_small_model(small_model: Path) -> None:
    """Conversations read what was said before, prompts with nothing in common read nothing, and the
    figures become JSON."""
    policy = f"{POLICY}models: [{{source: '{small_model}', engine: {{kv_bytes: 256MiB}}}}]\n"
    with serving(policy) as base_url:
        clients = await measure_clients(base_url, "a")
        misses = await measure_misses(base_url, "a")
    assert len(clients) == len(WORKLOADS) * len(NUM_CLIENTS)
    assert [row.load.num_requests for row in clients] == [8, 8, 8, 16, 16, 16]
    assert all(row.load.num_output == row.load.num_requests * 24 for row in clients)
    assert all(row.load.num_cached > 0 for row in clients if row.workload == "multi-turn")
    assert all(each.num_cached == 0 for loads in misses.rounds.values() for each in loads)
    assert misses.cache_share > 0
    assert json.dumps([clients, misses], default=asdict)
