"""The native kernels alone, beside torch in the same process:
products and attention of the default model's shapes.

Kernels and torch take turns over memory that the cache cannot hold, as a model's layers are, and
each shows its best time.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

from engine.native.library import Team, why_not_native
from tests.fakes.native_attention import Planned, Pool, Rows
from tests.fakes.native_kernels import STORE_BF16
from tests.fakes.native_products import Packed

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 9, 3, 64
PRODUCTS: Final = {"qkv": (960, 576), "gate and up": (3072, 576), "down": (576, 1536)}
"""Outputs and inputs of the default model's largest matrices."""
PRODUCT_ROWS: Final = (1, 8, 512)
PREFILLS: Final = ((0, 512), (3584, 512), (0, 4096))
"""First position and number of rows."""
DECODES: Final = (500, 2000, 8000)
"""Keys before the one row."""
NUM_SHARING, NUM_SHARED, NUM_OWN = 8, 2000, 60
PAGE: Final = 16
COLD_NBYTES: Final = 64 << 20
"""Copies of what a call reads are made up to so many bytes, more than a cache holds."""
LEAST_REUSE: Final = 256
"""Operations with each byte from which on a call does not wait for memory, so that one copy is
enough."""
CASE_S: Final = 0.5
LEAST_TURNS: Final = 3
"""How long native kernels and torch take turns, and how often at least."""
LEAST_PRODUCT: Final = 0.8
LEAST_ATTENTION: Final = 1.0
"""Of torch's speed, at least."""

Call: TypeAlias = Callable[[int], object]
"""One call with the copy of that number."""


@dataclass(frozen=True, slots=True)
class KernelFigures:
    """Best seconds of a call by the native library and by torch, its floating-point operations, and
    the bytes it must read."""

    name: str
    kind: str
    flop: float
    nbytes: int
    native_s: float
    torch_s: float

    @property
    def ratio(self) -> float:
        """The native library's speed as a multiple of torch's."""
        return self.torch_s / self.native_s


@dataclass(frozen=True, slots=True)
class _Product:
    """The same rows times copies of a weight, by either."""

    team: Team
    packed: Sequence[Packed]
    weights: torch.Tensor
    rows: torch.Tensor

    def native(self, copy: int) -> object:
        return self.packed[copy](self.team, self.rows, STORE_BF16)

    def torch(self, copy: int) -> object:
        return F.linear(self.rows, self.weights[copy])


def measure_kernels(case_s: float = CASE_S) -> list[KernelFigures]:
    """All cases in turn, with as many threads as there are cores; none where the library cannot be
    used."""
    if why_not_native() is not None:
        return []
    num_threads, before = os.cpu_count() or 1, torch.get_num_threads()
    team = Team(num_threads)
    torch.set_num_threads(num_threads)
    try:
        return [
            case for cases in (_products(team, case_s), _attention(team, case_s)) for case in cases
        ]
    finally:
        torch.set_num_threads(before)
        team.close()


def _products(team: Team, case_s: float) -> Iterator[KernelFigures]:
    for name, (num_out, num_in) in PRODUCTS.items():
        nbytes = 2 * num_out * num_in
        weights = torch.randn(_num_copies(nbytes, 0), num_out, num_in).bfloat16()
        packed = [Packed(weight) for weight in weights]
        for num_rows in PRODUCT_ROWS:
            rows = torch.randn(num_rows, num_in).bfloat16()
            flop = 2.0 * num_rows * num_out * num_in
            product = _Product(team, packed, weights, rows)
            native_s, torch_s = _best(
                product.native, product.torch, _num_copies(nbytes, flop), case_s
            )
            yield KernelFigures(
                f"{name}, {num_rows} row{'s' if num_rows > 1 else ''}",
                "product",
                flop,
                nbytes,
                native_s,
                torch_s,
            )


def _num_copies(nbytes: int, flop: float) -> int:
    return 1 if flop > LEAST_REUSE * nbytes else -(-COLD_NBYTES // nbytes)


def _attention(team: Team, case_s: float) -> Iterator[KernelFigures]:
    for start, num_rows in PREFILLS:
        yield _attend(
            team, f"{num_rows} rows after {start:,} keys", _spans(1, start, 0, num_rows), case_s
        )
    for start in DECODES:
        yield _attend(team, f"1 row after {start:,} keys", _spans(1, start, 0, 1), case_s)
    name = f"{NUM_SHARING} rows sharing {NUM_SHARED:,} keys"
    yield _attend(team, name, _spans(NUM_SHARING, NUM_SHARED, NUM_OWN, 1), case_s)


def _spans(num_sequences: int, num_shared: int, num_own: int, num_rows: int) -> list[Rows]:
    """Sequences that share their first pages, with so many keys of their own before their rows."""
    shared = num_shared // PAGE if num_sequences > 1 else 0
    num_pages = -(-(num_shared + num_own + num_rows) // PAGE)
    step = num_pages - shared
    return [
        Rows(
            num_shared + num_own,
            num_rows,
            (*range(shared), *range(shared + i * step, shared + (i + 1) * step)),
        )
        for i in range(num_sequences)
    ]


def _attend(team: Team, name: str, spans: Sequence[Rows], case_s: float) -> KernelFigures:
    """One layer's attention; torch gets keys and values as one piece for each sequence, so it
    gathers nothing."""
    num_slots = PAGE * (1 + max(max(rows.pages) for rows in spans))
    nbytes = 2 * 2 * num_slots * NUM_KV_HEADS * HEAD_DIM
    flop = (
        4.0
        * NUM_HEADS
        * HEAD_DIM
        * sum(position + 1 for rows in spans for position in range(rows.start, rows.end))
    )
    memory = torch.randn(_num_copies(nbytes, flop), 2, num_slots, NUM_KV_HEADS, HEAD_DIM).bfloat16()
    pools = [Pool(key, value, PAGE, NUM_HEADS) for key, value in memory]
    planned = [Planned(team, pool, spans) for pool in pools]
    query = torch.randn(sum(rows.num_rows for rows in spans), NUM_HEADS, HEAD_DIM).bfloat16()
    native_s, torch_s = _best(
        lambda copy: planned[copy](query),
        lambda copy: torch_attention(pools[copy], spans, query),
        len(pools),
        case_s,
    )
    for plan in planned:
        plan.free()
    return KernelFigures(name, "attention", flop, nbytes, native_s, torch_s)


def torch_attention(pool: Pool, spans: Sequence[Rows], query: torch.Tensor) -> torch.Tensor:
    """Torch's fused kernel, sequence by sequence: `[num_rows, num_heads, head_dim]`. Each sees the
    pool's first slots."""
    num_kv, outs, row = pool.key.shape[1], [], 0
    for rows in spans:
        key, value = (
            side[: rows.end].transpose(0, 1).unsqueeze(0) for side in (pool.key, pool.value)
        )
        own = query[row : row + rows.num_rows].transpose(0, 1).unsqueeze(0)
        if rows.num_rows == 1:  # the query heads of a KV head as its rows: keys are read once
            own = own.reshape(1, num_kv, -1, pool.head_dim)
            out = F.scaled_dot_product_attention(own, key, value).reshape(1, -1, 1, pool.head_dim)
        elif rows.start == 0:
            out = F.scaled_dot_product_attention(own, key, value, is_causal=True, enable_gqa=True)
        else:
            mask = torch.ones(rows.num_rows, rows.end, dtype=torch.bool).tril(rows.start)
            out = F.scaled_dot_product_attention(own, key, value, mask, enable_gqa=True)
        outs.append(out[0].transpose(0, 1))
        row += rows.num_rows
    return torch.cat(outs)


def _best(native: Call, other: Call, num_copies: int, case_s: float) -> tuple[float, float]:
    """The best mean time of a call over all copies, of each; they take turns for `case_s`
    seconds."""
    best, turns, end_s = [float("inf"), float("inf")], 0, time.perf_counter() + case_s
    with torch.inference_mode():
        while turns < LEAST_TURNS or time.perf_counter() < end_s:
            for which, call in enumerate((native, other)):
                begin_s = time.perf_counter()
                for copy in range(num_copies):
                    call(copy)
                best[which] = min(best[which], (time.perf_counter() - begin_s) / num_copies)
            turns += 1
    return best[0], best[1]


def show_kernels(console: Console, figures: Sequence[KernelFigures]) -> bool:
    """Print the table; true where no product and no attention is slower than it may be, and where
    there is no library."""
    if not figures:
        console.print(f"no native kernels: {why_not_native()}\n")
        return True
    table = Table(
        title="native kernels beside torch, bfloat16, all cores, memory cold", title_justify="left"
    )
    for column in ("", "native", "GFLOP/s", "GB/s", "torch", "speed"):
        table.add_column(column, justify="left" if not column else "right")
    for row in figures:
        speeds = f"{row.flop / row.native_s / 1e9:.0f}", f"{row.nbytes / row.native_s / 1e9:.1f}"
        times = [f"{1e6 * seconds:,.0f} µs" for seconds in (row.native_s, row.torch_s)]
        table.add_row(row.name, times[0], *speeds, times[1], f"{row.ratio:.2f}")
    console.print(table)
    slow = [
        row.name
        for row in figures
        if row.ratio < (LEAST_PRODUCT if row.kind == "product" else LEAST_ATTENTION)
    ]
    missed = f"; missed by: {', '.join(slow)}" if slow else ""
    told = f"targets: {LEAST_PRODUCT} of torch's speed in products, {LEAST_ATTENTION} in attention"
    console.print(f"{told}{missed}\n", highlight=False)
    return not slow


if __name__ == "__main__":
    sys.exit(0 if show_kernels(Console(), measure_kernels()) else 1)
