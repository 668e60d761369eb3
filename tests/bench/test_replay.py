"""Replayed traces: the prefix cache hits what a plain list of recently used blocks does."""

from __future__ import annotations

import gzip
import json
import random
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.replay import Request, read_trace, replay


def trace(seed: int = 1, num_requests: int = 400) -> list[Request]:
    """Conversations of six prompts or so behind one system text; an id is an equal prefix."""
    draw = random.Random(seed)
    serial = iter(range(1, 10**6))
    open_ones: list[list[int]] = []
    requests = []
    for i in range(num_requests):
        if not open_ones or draw.random() < 0.2:
            open_ones.append([0])
        chosen = draw.choice(open_ones[-40:])
        chosen += [next(serial) for _ in range(draw.randint(1, 4))]
        requests.append(Request(float(i), tuple(chosen)))
    return requests


def flat_lru(requests: Sequence[Request], capacity: int) -> int:
    """Hits of blocks in one list, used from root to leaf, the one unused for longest leaving."""
    held: OrderedDict[int, None] = OrderedDict()
    num_hits = 0
    for request in requests:
        ids = request.hash_ids
        num_hits += next((i for i, each in enumerate(ids) if each not in held), len(ids))
        for each in ids:
            held[each] = None
            held.move_to_end(each)
            while len(held) > capacity:
                held.popitem(last=False)
    return num_hits


def test_without_a_limit_every_repeated_block_hits() -> None:
    """What was ever seen is found, the last block of a repeated prompt included."""
    requests = trace()
    twice = [*requests, *requests]
    figures = replay(twice, 0)
    unique = len({each for request in requests for each in request.hash_ids})
    assert figures.num_hits == figures.num_blocks - unique == flat_lru(twice, 10**6)


@pytest.mark.parametrize("capacity", [60, 120, 240])
def test_with_a_limit_hits_are_those_of_a_plain_list(capacity: int) -> None:
    """Leaves leave before their parents here, in a list parents leave first, and then their
    children hold a place in vain."""
    requests = trace()
    figures = replay(requests, capacity)
    expected = flat_lru(requests, capacity)
    assert 0 < expected < replay(requests, 0).num_hits
    assert expected <= figures.num_hits <= expected + 0.05 * figures.num_blocks


def test_a_prompt_that_never_fits_is_an_error() -> None:
    """Eight blocks do not go into a cache of four."""
    with pytest.raises(ValueError, match="8 pages"):
        replay([Request(0.0, tuple(range(8)))], 4)


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_traces_are_read_plain_or_packed(name: str, tmp_path: Path) -> None:
    """Milliseconds become seconds; the other fields are not needed."""
    path = tmp_path / name
    text = (
        json.dumps({"timestamp": 3000, "input_length": 700, "output_length": 1, "hash_ids": [0, 7]})
        + "\n"
    )
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    assert list(read_trace(path)) == [Request(3.0, (0, 7))]
