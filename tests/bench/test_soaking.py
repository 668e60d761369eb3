"""What the soak counts, bytes in a folder that changes, answers that differ, codewords that leak,
how it tells. No model."""

from __future__ import annotations

import os
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from bench.soak import Pace, row
from bench.soaking import Answer, Conversation, Findings, SoakSizes, Watch, compare
from engine.types import CacheReport
from gateway.ssd_shares import occupied_nbytes

BENCHMARKS = Path(__file__).parents[2] / "docs" / "benchmarks.md"
SIZES = SoakSizes(num_turns=1, context=100, max_tokens=3)


def fill(path: Path, num_blocks: int = 4) -> Path:
    """A file whose blocks are really allocated."""
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        file.write(b"x" * 4096 * num_blocks)
        os.fsync(file.fileno())
    return path


def answer(text: str, *token_ids: int) -> Answer:
    return Answer(text, token_ids, CacheReport(num_prompt=10, skipped=4, tiers={"ssd": 4}))


def test_a_folder_that_rests_is_what_du_says(tmp_path: Path) -> None:
    """Files and folders, and the most of all looks: what is deleted later has been there."""
    path = fill(tmp_path / "a" / "one", 8)
    fill(tmp_path / "b" / "two")
    watch = Watch(tmp_path)
    watch.look()
    most = occupied_nbytes(tmp_path)
    path.unlink()
    watch.look()
    assert watch.most_nbytes == most > occupied_nbytes(tmp_path)


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    """A tier makes its folder when it is opened."""
    watch = Watch(tmp_path / "none")
    watch.look()
    assert watch.most_nbytes == 0


def test_what_only_one_of_two_walks_sees_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file written in the place of one deleted during the walk never lay beside it."""
    old, kept = fill(tmp_path / "old"), fill(tmp_path / "kept")
    walk, num_walks = os.walk, 0

    def changing(folder: Path) -> object:
        nonlocal num_walks
        num_walks += 1
        if num_walks == 2:
            fill(tmp_path / "new")
            old.unlink()
        return walk(folder)

    monkeypatch.setattr(os, "walk", changing)
    watch = Watch(tmp_path)
    watch.look()
    assert num_walks == 2
    assert watch.most_nbytes == tmp_path.stat().st_blocks * 512 + kept.stat().st_blocks * 512


def test_answers_are_compared_by_token(tmp_path: Path) -> None:
    """Other tokens are unequal even where the text is the same; a codeword of another conversation
    is told from the own."""
    findings, talk, other = Findings(), Conversation(0, SIZES), Conversation(1, SIZES)
    assert talk.codeword != other.codeword
    compare(
        findings, talk, answer(f"It is {talk.codeword}.", 1, 2), answer("", 1, 2), [other.codeword]
    )
    assert (findings.num_unequal, findings.num_foreign, findings.num_own) == (0, 0, 1)
    compare(
        findings, talk, answer(f"It is {other.codeword}.", 1, 2), answer("", 1, 3), [other.codeword]
    )
    assert (findings.num_unequal, findings.num_foreign, findings.num_own) == (1, 1, 1)
    assert (findings.num_turns, findings.num_prompt_tokens, findings.num_tokens_by_tier) == (
        2,
        20,
        {"ssd": 8},
    )


def test_codewords_and_tenants_differ() -> None:
    """Every conversation has a codeword of its own, no codeword is part of another, and there are
    two tenants."""
    talks = [Conversation(i, SIZES) for i in range(SIZES.num_conversations)]
    codewords = [talk.codeword for talk in talks]
    assert len(set(codewords)) == 20
    assert not any(a in b for a in codewords for b in codewords if a != b)
    assert {talk.tenant for talk in talks} == {"tenant 0", "tenant 1"}


def test_a_conversation_starts_over_with_its_last_question() -> None:
    """The system text stays; of the messages the last question alone."""
    talk = Conversation(0, SIZES)
    talk.ask("first")
    talk.hear(answer("said"))
    talk.ask("second")
    talk.start_over()
    (message,) = talk.prompt.messages
    assert message.parts[0].text == "second"  # type: ignore[union-attr]
    assert talk.codeword in talk.prompt.system[0].text


def test_the_way_is_told_in_twenty_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a log, which is read while the soak runs: turns, what is wrong so far, and the time they
    took and will take."""
    said = StringIO()
    monkeypatch.setattr("bench.soak.console", Console(file=said, width=110))
    monkeypatch.setattr("time.perf_counter", lambda: 1000.0 + 6 * findings.num_turns)
    findings = Findings()
    pace = Pace(100, begin_s=1000.0)
    for _ in range(100):
        findings.num_turns += 1
        findings.num_unequal = findings.num_turns // 50
        pace(findings)
    lines = said.getvalue().splitlines()
    assert len(lines) == 20
    assert lines[0].startswith(
        "5 of 100 turns, 0 unequal, 0 foreign; 0:00:30 so far, about 0:09:30 left"
    )
    assert lines[-1].startswith(
        "100 of 100 turns, 2 unequal, 0 foreign; 0:10:00 so far, about 0:00:00 left"
    )


def test_the_result_is_a_line_of_the_documents_table() -> None:
    """With as many cells as the table in docs/benchmarks.md has columns, and the verdict last."""
    findings = Findings(num_turns=500, num_prompt_tokens=300_000, num_unequal=1)
    findings.num_tokens_by_tier.update(ssd=1234, redis=99)
    line = row(
        findings,
        1800.0,
        {"date": "2026-11-30 10:40 UTC", "processor": "AMD EPYC, 2 cores"},
        good=False,
    )
    assert line.startswith(
        "| 2026-11-30 | AMD EPYC, 2 cores | 500 | 300,000 | 1,234 / 99 | 1 / 0 | "
    )
    assert line.endswith(" | 0:30:00 | FAIL |")
    (header,) = [
        line
        for line in BENCHMARKS.read_text(encoding="utf-8").splitlines()
        if line.startswith("| soak of |")
    ]
    assert line.count("|") == header.count("|")
