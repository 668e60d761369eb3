"""The generic forward pass: any supported transformers model over the paged pool,
in fast or exact mode.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import Any

import torch

from engine.model.generic.attention import ForwardPass
from engine.model.kv_pool import KvPool
from engine.model.page_tables import PageTables
from engine.model.rows import Group, fixed_groups, one_group
from engine.model.runner import Identity
from engine.schedule.sequence import Slice


class GenericForward:
    """Implements `engine.model.runner.Forward` through transformers' own modules and our attention
    function."""

    name = "generic"

    def __init__(self, model: Any, pool: KvPool, identity: Identity) -> None:
        self._model = model
        self._pool = pool
        self._identity = identity
        self._tables = PageTables(pool.page_size, pool.num_pages)

    def __call__(self, slices: Seq[Slice]) -> torch.Tensor:
        """See `Forward`."""
        rows: list[list[torch.Tensor]] = [[] for _ in slices]
        for group in self._groups(slices):
            logits = iter(
                run_group(self._model, ForwardPass(group, self._pool, self._identity.windows))
            )
            for span in group.spans:
                rows[span.slice_index] += [next(logits) for _ in range(span.num_sampled)]
        found = [row for of_slice in rows for row in of_slice]
        return torch.stack(found) if found else torch.empty((0, self._model.config.vocab_size))

    def close(self) -> None:
        """See `Forward`: there is nothing."""

    def _groups(self, slices: Seq[Slice]) -> Iterable[Group]:
        self._tables.renew(piece.sequence for piece in slices)
        if self._identity.rows is not None:
            return fixed_groups(slices, self._tables, self._identity.rows)
        return [one_group(slices, self._tables)]


def run_group(model: Any, context: ForwardPass) -> torch.Tensor:
    """One forward pass of a group, writing its KV; returns fp32 logits `[num_wanted, vocab]` of the
    spans that ask for them."""
    group, device = context.group, context.pool.device
    pad = group.num_rows - context.num_rows
    token_ids = [token for span in group.spans for token in span.token_ids] + [0] * pad
    positions = [position for span in group.spans for position in range(span.start, span.end)] + [
        0
    ] * pad
    wanted = [
        span.row + row
        for span in group.spans
        for row in range(span.num_rows - span.num_sampled, span.num_rows)
    ]
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
