"""Drives a TorchRunner by hand, as the step loop would, and keeps every row of logits it gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any, Final

import torch

from engine.config import EngineConfig
from engine.model.load.load import load_runner
from engine.model.paged.cuda import DeviceFeatures
from engine.schedule.sequence import Sampled, Sequence, Slice
from engine.types import Sampling

GREEDY = Sampling(max_tokens=1000, temperature=0.0)

SAME_LOGITS: Final = 1e-4
"""Largest difference of a logit between two ways of attending, as a share of the row's spread, in
float32."""


class Driver:
    """One runner, on a device that offers `features`. `logits[request_id][n]` is the row that saw
    the request's first n tokens."""

    def __init__(
        self, folder: Path, features: DeviceFeatures | None = None, **options: Any
    ) -> None:
        settings: dict[str, Any] = {
            "model": "test",
            "model_path": str(folder),
            "root_secret": b"0123456789abcdef",
            "context": 2048,
            "kv_nbytes": 64 * 1024 * 1024,
            "num_threads": 2,
        }
        self.logits: dict[str, dict[int, torch.Tensor]] = {}
        self.config = EngineConfig(**(settings | options))
        self.runner = load_runner(self.config, self._keep, features)

    def sequence(
        self, name: str, token_ids: Iterable[int], pages: Seq[int], num_prompt: int | None = None
    ) -> Sequence:
        """A greedy sequence on the given pages; all its tokens are prompt unless said."""
        ids = list(token_ids)
        self.logits[name] = {}
        return Sequence(
            name,
            ids,
            len(ids) if num_prompt is None else num_prompt,
            GREEDY,
            block_table=list(pages),
        )

    def prefill(self, sequence: Sequence, start: int = 0, cuts: Seq[int] = ()) -> int:
        """Compute tokens from `start` in steps ending at `cuts`, then the rest; append and return
        the sampled token."""
        ends = [cut for cut in cuts if start < cut < len(sequence.token_ids)] + [
            len(sequence.token_ids)
        ]
        sampled: Sampled | None = None
        for end in ends:
            (sampled,) = self.runner.step(
                [Slice(sequence, start, end - start, end == len(sequence.token_ids))]
            )
            start = end
        assert sampled is not None
        sequence.token_ids += sampled.token_ids
        return sampled.token_ids[-1]

    def decode(self, sequences: Seq[Sequence], num_tokens: int) -> None:
        """Sample `num_tokens` more tokens for each sequence, in one batch."""
        for _ in range(num_tokens):
            slices = [
                Slice(sequence, len(sequence.token_ids) - 1, 1, sample=True)
                for sequence in sequences
            ]
            for sequence, sampled in zip(sequences, self.runner.step(slices), strict=True):
                assert sampled is not None
                sequence.token_ids += sampled.token_ids

    def force(self, sequence: Sequence, token_ids: Iterable[int]) -> None:
        """Feed given tokens one by one, whatever the model would have sampled; the first replaces
        the last sampled one."""
        sequence.token_ids.pop()
        for token in token_ids:
            sequence.token_ids.append(token)
            self.runner.step([Slice(sequence, len(sequence.token_ids) - 1, 1, sample=True)])

    def _keep(self, request_id: str, num_seen: int, row: torch.Tensor) -> None:
        self.logits[request_id][num_seen] = row.clone()


def mixed_step(driver: Driver, tokens: Seq[int], pages: Seq[Seq[int]]) -> None:
    """Decode `d0`, `d1` (with a draft) and `d2` beside a prefill that goes on and `ending`, which
    ends in this step.

    `pages` are those of the five sequences in this order: ten for each that decodes, twenty, and
    four.
    """
    decoding = [driver.sequence(f"d{i}", tokens[i : 90 + i], pages[i]) for i in range(3)]
    for sequence in decoding:
        driver.prefill(sequence)
    going, ending = (
        driver.sequence("going", tokens[:300], pages[3]),
        driver.sequence("ending", tokens[9:60], pages[4]),
    )
    driver.runner.step([Slice(going, 0, 100, sample=False)])
    for sequence in decoding:
        sequence.token_ids[-1:] = [7]
    slices = [Slice(one, len(one.token_ids) - 1, 1, sample=True) for one in decoding]
    slices[1] = Slice(decoding[1], slices[1].start, 1, sample=True, draft=(5, 6))
    driver.runner.step(
        [
            slices[0],
            Slice(going, 100, 150, sample=False),
            *slices[1:],
            Slice(ending, 0, 51, sample=True),
        ]
    )


MIXED_ROWS: Final[Mapping[str, int]] = {"d0": 2, "d1": 4, "d2": 2, "ending": 1}
"""Rows of logits that `mixed_step` leaves, the prefills before it included."""


def check_same(
    ours: dict[int, torch.Tensor], theirs: dict[int, torch.Tensor], num_rows: int
) -> None:
    """Both gave the same rows, and in float32 the same logits but for rounding."""
    assert ours.keys() == theirs.keys()
    assert len(ours) == num_rows
    for num_seen, row in theirs.items():
        assert float((ours[num_seen] - row).abs().max()) < SAME_LOGITS * float(
            row.max() - row.min()
        )
