"""One sequence on a runner, computed in full or continued behind KV that is already in the pool. Knows no cache index."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch

from engine.config import EngineConfig
from engine.model.load import load_runner
from engine.schedule.sequence import Sequence, Slice, Status
from engine.types import Sampling

CHUNK = 512


@dataclass(slots=True)
class Run:
    """What came of one sequence: sampled tokens, the logits each was sampled from, and seconds."""

    pages: list[int]
    token_ids: list[int] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    prefill_s: float = 0.0
    decode_s: float = 0.0


class Replay:
    """Drives one runner with greedy sequences. Pages are handed out once, in order, and never freed."""

    def __init__(self, config: EngineConfig) -> None:
        self._logits: list[torch.Tensor] = []
        self.runner = load_runner(config, lambda request_id, num_tokens, row: self._logits.append(row.clone()))
        self._block_size = config.block_size
        self._next_page = 0

    def cold(self, prompt: Seq[int], num_output: int) -> Run:
        """Everything computed."""
        return self._run(prompt, num_output, self._pages(len(prompt) + num_output), 0, None)

    def hit(self, prompt: Seq[int], num_output: int, behind: Run, num_cached: int, forced: Seq[int] | None = None) -> Run:
        """The first `num_cached` tokens from the pages of `behind`, the last page copied if it is not full.

        With `forced` the tokens are not sampled but given, so that logits can be compared step by step.
        """
        num_full, num_tail = divmod(num_cached, self._block_size)
        pages = behind.pages[:num_full] + self._pages(len(prompt) + num_output - num_full * self._block_size)
        if num_tail:
            self.runner.copy_page(behind.pages[num_full], pages[num_full], num_tail)
        return self._run(prompt, num_output, pages, num_cached, forced)

    def close(self) -> None:
        self.runner.close()

    def _pages(self, num_tokens: int) -> list[int]:
        num_pages = -(-num_tokens // self._block_size)
        first, self._next_page = self._next_page, self._next_page + num_pages
        if self._next_page > self.runner.num_pages:
            raise MemoryError(f"the pool has {self.runner.num_pages} pages, {self._next_page} are needed")
        return list(range(first, self._next_page))

    def _run(self, prompt: Seq[int], num_output: int, pages: list[int], num_cached: int, forced: Seq[int] | None) -> Run:
        sampling = Sampling(max_tokens=num_output, temperature=0.0)
        sequence = Sequence("replay", list(prompt), len(prompt), sampling, num_cached, num_cached, pages)
        run = Run(pages)
        self._logits.clear()
        sequence.move(Status.PREFILL)
        begin_s = time.perf_counter()
        for start in range(num_cached, len(prompt), CHUNK):
            num_tokens = min(CHUNK, len(prompt) - start)
            self._step(sequence, start, num_tokens, run, forced)
        run.prefill_s = time.perf_counter() - begin_s
        sequence.move(Status.DECODE)
        begin_s = time.perf_counter()
        for start in range(len(prompt), len(prompt) + num_output - 1):
            self._step(sequence, start, 1, run, forced)
        run.decode_s = time.perf_counter() - begin_s
        run.logits = list(self._logits)
        sequence.move(Status.DONE)
        return run

    def _step(self, sequence: Sequence, start: int, num_tokens: int, run: Run, forced: Seq[int] | None) -> None:
        is_last = start + num_tokens == len(sequence.token_ids)
        (token_id,) = self.runner.step([Slice(sequence, start, num_tokens, sample=is_last)])
        sequence.num_computed = start + num_tokens
        if token_id is not None:
            run.token_ids.append(token_id)
            sequence.token_ids.append(token_id if forced is None else forced[sequence.num_output])
