"""A published trace of prefix hashes through the prefix cache itself: hit ratio by capacity.

No model, no tokenizer.

    python -m bench.replay conversation_trace.jsonl.gz --blocks 1000 16000 64000 0

The trace is that of Mooncake (FAST'25): one JSON object a line with `timestamp` in milliseconds and
`hash_ids`, one per 512 tokens, where an equal id means an equal prefix. Such a hash stands for one
block here, so the numbers are blocks. `0` is a cache that never evicts. Requests are replayed one
after the other, as the published simulators do.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.index import NoDevice
from engine.cache.prefix_cache import PrefixCache
from engine.prompt.rendered import RenderedPrompt
from engine.structures.scores import SCORES
from engine.types import CachePlan

BLOCK_SIZE: Final = 2
"""Tokens that stand for a hash. The cache computes the last token of every prompt, so a block of
one would never hit."""
FOREVER_S: Final = 1e9


@dataclass(frozen=True, slots=True)
class Request:
    """When it came, and what its prompt is made of."""

    at_s: float
    hash_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReplayFigures:
    """A trace at one capacity in blocks (0: unbounded): blocks asked for, blocks found, and what it
    took."""

    capacity: int
    num_blocks: int
    num_hits: int
    seconds: float

    @property
    def ratio(self) -> float:
        return self.num_hits / self.num_blocks


def read_trace(path: Path) -> Iterator[Request]:
    """The requests of a file, plain or gzipped, in its order."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield Request(row["timestamp"] / 1000, tuple(row["hash_ids"]))


def replay(requests: Sequence[Request], capacity: int, eviction: str = "lru") -> ReplayFigures:
    """All requests through a cache of so many blocks, each released before the next one comes.

    Raises `ValueError` when a single prompt has more blocks than the cache.
    """
    unbounded = sum(len(request.hash_ids) for request in requests)
    cache = PrefixCache(
        device=NoDevice(),
        num_pages=capacity or unbounded,
        page_nbytes=1,
        block_size=BLOCK_SIZE,
        fingerprint="replay",
        root_secret=bytes(32),
        eviction=eviction,
    )
    plan = CachePlan(unmarked_ttl_s=FOREVER_S)
    num_hits = 0
    begin_s = time.perf_counter()
    for request in requests:
        token_ids = tuple(token for each in request.hash_ids for token in (2 * each, 2 * each + 1))
        rendered = RenderedPrompt(token_ids, {}, 0)
        lookup = cache.lookup("replay", rendered, plan, request.at_s)
        lease = cache.admit(lookup, num_reserve=len(token_ids))
        assert lease is not None, "nobody else holds pages"
        num_hits += (lease.num_cached + 1) // BLOCK_SIZE
        cache.grow(lease, len(token_ids))
        cache.release(lease, list(token_ids), len(token_ids))
    return ReplayFigures(capacity, unbounded, num_hits, time.perf_counter() - begin_s)


def main() -> int:
    whole = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m bench.replay", description=__doc__, formatter_class=whole
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument(
        "--blocks",
        type=int,
        nargs="+",
        default=(1000, 16_000, 64_000, 0),
        help="capacities; 0 is unbounded",
    )
    parser.add_argument("--eviction", choices=sorted(SCORES), default="lru")
    arguments = parser.parse_args()
    requests = list(read_trace(arguments.trace))
    for capacity in arguments.blocks:
        figures = replay(requests, capacity, arguments.eviction)
        rate = figures.num_blocks / figures.seconds
        print(
            f"{capacity or 'unbounded':>9} blocks: {figures.ratio:.4f} hit, {rate:,.0f} blocks/s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
