"""`python -m tools.corpus`: record what a checkout answers to the corpus,
and compare two recordings.

    python -m tools.corpus record --checkout DIR --out FILE.jsonl
    python -m tools.corpus compare FORMER.jsonl LATTER.jsonl

`compare` ends with 1 where an answer differs by more than ids and times, and with 2 where its own
control fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tools.corpus.cases import stages
from tools.corpus.compare import CONTROLS, compare, unseen_changes
from tools.corpus.stages import record
from tools.corpus.steps import load, save


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.corpus", description="Are two checkouts' answers the same bytes?"
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    recording = verbs.add_parser("record", help="ask a checkout everything")
    recording.add_argument("--checkout", type=Path, required=True)
    recording.add_argument("--out", type=Path, required=True)
    comparing = verbs.add_parser("compare", help="show what differs between two recordings")
    comparing.add_argument("former", type=Path)
    comparing.add_argument("latter", type=Path)
    given = parser.parse_args()
    return (
        _record(given.checkout, given.out)
        if given.verb == "record"
        else _compare(given.former, given.latter)
    )


def _record(checkout: Path, out: Path) -> int:
    begun_s = time.monotonic()
    records = list(record(checkout, stages()))
    save(out, records)
    _say(f"{len(records)} requests of {checkout} in {time.monotonic() - begun_s:.0f} s: {out}")
    return 0


def _compare(former: Path, latter: Path) -> int:
    one, other = load(former), load(latter)
    differences = compare(one, other)
    missed = unseen_changes(one)
    for difference in differences:
        _say(difference.diff + "\n")
    for change in missed:
        _say(f"the control failed, as this change is not seen: {change}")
    num_changes = len(CONTROLS) * len(one)
    _say(f"{len(one)} and {len(other)} requests: {len(differences)} differ.")
    _say(
        f"Control: {num_changes - len(missed)} of {num_changes} changes of single answers are seen."
    )
    return 2 if missed else 1 if differences else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
