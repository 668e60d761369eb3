"""The generic runner: any supported transformers model over the paged pool, in fast or exact mode. Knows no scheduling."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from engine.model.attention import Pass
from engine.model.kv_pool import KvPool
from engine.model.rows import Group, RowGroups, fixed_groups, one_group
from engine.model.sampler import sample
from engine.schedule.sequence import Sampled, Slice

LogitsSink: TypeAlias = Callable[[str, int, torch.Tensor], None]
"""Called with request id, number of tokens the row has seen, and the row's logits `[vocab]`: for tests and measurements."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a runner is, fixed when it is made: its KV's fingerprint, windows per layer, and row groups (None: fast mode)."""

    fingerprint: str
    windows: tuple[int | None, ...]
    rows: RowGroups | None


class TorchRunner:
    """Implements `engine.schedule.runner.Runner`. Used by one thread."""

    def __init__(self, model: Any, pool: KvPool, identity: Identity, logits_sink: LogitsSink | None = None) -> None:
        self.name = "generic"
        self.device = pool.device.type
        self.fingerprint = identity.fingerprint
        self.num_pages = pool.num_pages
        self.page_nbytes = pool.page_nbytes
        self.exact = identity.rows is not None
        self.reuse_decode_kv = identity.rows is None or identity.rows.prefill == identity.rows.decode
        self._model = model
        self._pool: KvPool | None = pool
        self._identity = identity
        self._sink = logits_sink

    def step(self, slices: Seq[Slice]) -> list[Sampled | None]:
        """See `Runner.step`. Every slice's block table must cover its tokens, the draft's included."""
        rows: list[list[torch.Tensor]] = [[] for _ in slices]
        for group in self._groups(slices):
            logits = iter(run_group(self._model, Pass(group, self._open(), self._identity.windows)))
            for span in group.spans:
                for end in range(span.end - span.num_sampled + 1, span.end + 1):
                    row = next(logits)
                    rows[span.slice_index].append(row)
                    if self._sink is not None:
                        self._sink(slices[span.slice_index].sequence.request_id, end, row)
        wanted = [piece for piece in slices if piece.sample]
        sampled = iter(sample(torch.stack([row for of_slice in rows for row in of_slice]), wanted) if wanted else [])
        return [next(sampled) if piece.sample else None for piece in slices]

    def copy_page(self, source: int, target: int, num_tokens: int) -> None:
        """See `Runner.copy_page`."""
        self._open().copy_page(source, target, num_tokens)

    def read_pages(self, pages: Seq[int]) -> list[bytes]:
        """See `Runner.read_pages`; the layout is in `engine.model.kv_pool`."""
        return self._open().read_pages(pages)

    def write_pages(self, pages: Seq[int], payloads: Seq[bytes]) -> None:
        """See `Runner.write_pages`."""
        self._open().write_pages(pages, payloads)

    def close(self) -> None:
        """Release weights and pool. Idempotent."""
        self._pool = None
        self._model = None

    def _open(self) -> KvPool:
        if self._pool is None:
            raise RuntimeError("the runner is closed")
        return self._pool

    def _groups(self, slices: Seq[Slice]) -> Iterable[Group]:
        page_size = self._open().page_size
        if self._identity.rows is not None:
            return fixed_groups(slices, page_size, self._identity.rows)
        return [one_group(slices, page_size)] if slices else []


def run_group(model: Any, context: Pass) -> torch.Tensor:
    """One forward pass of a group, writing its KV; returns fp32 logits `[num_wanted, vocab]` of the spans that ask for them."""
    group, device = context.group, context.pool.device
    pad = group.num_rows - context.num_rows
    token_ids = [token for span in group.spans for token in span.token_ids] + [0] * pad
    positions = [position for span in group.spans for position in range(span.start, span.end)] + [0] * pad
    wanted = [span.row + row for span in group.spans for row in range(span.num_rows - span.num_sampled, span.num_rows)]
    head_rows = wanted + [0] * (group.num_sampled - len(wanted))
    with torch.inference_mode():
        output = model(
            input_ids=torch.tensor([token_ids], dtype=torch.int64, device=device),
            position_ids=torch.tensor([positions], dtype=torch.int64, device=device),
            use_cache=False,
            logits_to_keep=torch.tensor(head_rows, dtype=torch.int64, device=device),
            pcg_pass=context,
        )
        logits: torch.Tensor = output.logits[0, : len(wanted)].float()
        return logits
