"""Speeds of one random model on one device: first tokens cold and behind a hit, decoding,
and pages in and out.

Every figure stands beside what limits it, measured in the same run: the device's own memory
bandwidth, and that of copies from and to pinned memory. Random weights do for that: no figure
depends on their values.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from engine.config import EngineConfig
from engine.model.generic import attention
from engine.model.load.load import build_runner
from engine.model.load.plan import plan_runner
from engine.model.paged.cuda import DeviceFeatures
from engine.schedule.sequence import Sequence, Slice
from engine.types import Sampling

GIB: Final = 1024**3
NUM_FRESH: Final = 40
"""Tokens behind the cached prefix of a hit."""


@dataclass(frozen=True, slots=True)
class Scale:
    """What is measured, of which model. `decode` are numbers of sequences and tokens that each
    has."""

    model: dict[str, Any]
    lengths: tuple[int, ...]
    decode: tuple[tuple[int, int], ...]
    max_step_tokens: int
    num_decoded: int
    kv_nbytes: int
    moved_nbytes: int
    copied_nbytes: int


FULL: Final = Scale(
    model={
        "vocab_size": 128_256,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
    },
    lengths=(4096, 8192, 16_384, 32_768),
    decode=((1, 4096), (1, 32_768), (8, 4096), (32, 2048)),
    max_step_tokens=2048,
    num_decoded=64,
    kv_nbytes=12 * GIB,
    moved_nbytes=2 * GIB,
    copied_nbytes=GIB,
)
"""The shape of an 8B model in bfloat16, whose KV takes 128 KiB a token."""

QUICK: Final = Scale(
    model={
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
    },
    lengths=(128, 256),
    decode=((1, 128), (3, 64)),
    max_step_tokens=128,
    num_decoded=4,
    kv_nbytes=4 * 1024**2,
    moved_nbytes=256 * 1024,
    copied_nbytes=1024**2,
)
"""The same program in seconds on a processor: its figures say nothing."""


@dataclass(slots=True)
class Speeds:
    """Figures by name, a row each; bandwidths in GB/s."""

    facts: dict[str, Any] = field(default_factory=dict)
    first_token: list[dict[str, Any]] = field(default_factory=list)
    decode: list[dict[str, Any]] = field(default_factory=list)
    moves: list[dict[str, Any]] = field(default_factory=list)


class SpeedCheck:
    """One runner of one random model, and how to time it."""

    def __init__(self, device: str, scale: Scale, features: DeviceFeatures | None = None) -> None:
        self._scale = scale
        self._device = torch.device(device)
        attention.register()
        config = LlamaConfig(architectures=["LlamaForCausalLM"], **scale.model)
        auto: Any = AutoModelForCausalLM
        with self._device:
            model = auto.from_config(
                config, dtype=torch.bfloat16, attn_implementation=attention.ATTENTION_NAME
            ).eval()
        embedding = model.get_input_embeddings().weight
        # A step reads every weight once but the embedding, of which it takes a few rows.
        self._weights_nbytes = sum(one.nbytes for one in model.parameters()) - embedding.nbytes
        begin_s = time.perf_counter()
        plan = plan_runner(self._config(device), config, features)
        self._runner = build_runner(model, plan, "random")
        self.load_s = time.perf_counter() - begin_s
        self._kv_nbytes = self._runner.page_nbytes // self._runner.page_size
        self._vocabulary = config.vocab_size

    def run(self) -> Speeds:
        """Everything, in about two minutes on a large device."""
        speeds = Speeds()
        memory = self._gb_per_s(self._device, self._device) * 2  # a copy reads and writes
        speeds.facts = {
            "runner": self._runner.name,
            "page_size": self._runner.page_size,
            "weights_gib": round(self._weights_nbytes / GIB, 2),
            "load_s": round(self.load_s, 1),
            "memory_gb_per_s": round(memory, 1),
        }
        speeds.first_token = [self._first_token(num_tokens) for num_tokens in self._scale.lengths]
        speeds.decode = [self._decode(*batch, memory) for batch in self._scale.decode]
        speeds.moves = [*self._moves(), self._beside_compute()]
        return speeds

    def close(self) -> None:
        """Release the device."""
        self._runner.close()

    def _config(self, device: str) -> EngineConfig:
        scale = self._scale
        return EngineConfig(
            model="random",
            model_path="/",
            root_secret=bytes(16),
            device=device,
            exact="off",
            runner="lean",
            context=max(max(scale.lengths), max(length for _, length in scale.decode))
            + scale.num_decoded
            + 1,
            kv_nbytes=scale.kv_nbytes,
            max_sequences=max(number for number, _ in scale.decode),
            max_step_tokens=scale.max_step_tokens,
        )

    def _first_token(self, num_tokens: int) -> dict[str, Any]:
        """A prompt computed whole, and behind all but its last tokens; a shape's first pass is
        slow, and not counted."""
        self._prefill(num_tokens, 0)
        cold_s = self._prefill(num_tokens, 0)
        self._prefill(num_tokens, num_tokens - NUM_FRESH)
        hit_s = self._prefill(num_tokens, num_tokens - NUM_FRESH)
        return {
            "tokens": num_tokens,
            "cold_ms": round(1000 * cold_s, 2),
            "hit_ms": round(1000 * hit_s, 2),
            "hit_share": round(hit_s / cold_s, 4),
            "prefill_tokens_per_s": round(num_tokens / cold_s),
        }

    def _decode(self, num_sequences: int, num_tokens: int, memory: float) -> dict[str, Any]:
        """Tokens per second of a batch, and what reading weights and KV once per step would
        allow."""
        batch = self._batch(num_sequences, num_tokens)
        self._steps(batch, 2)
        step_s = self._steps(batch, self._scale.num_decoded) / self._scale.num_decoded
        nbytes = self._weights_nbytes + num_sequences * num_tokens * self._kv_nbytes
        limit_s = nbytes / (memory * 1e9)
        return {
            "sequences": num_sequences,
            "tokens": num_tokens,
            "step_ms": round(1000 * step_s, 3),
            "tokens_per_s": round(num_sequences / step_s, 1),
            "limit_tokens_per_s": round(num_sequences / limit_s, 1),
            "of_limit": round(limit_s / step_s, 3),
        }

    def _moves(self) -> list[dict[str, Any]]:
        """Pages out of the pool into memory and back, beside plain copies of pinned memory."""
        pages = range(
            min(self._scale.moved_nbytes // self._runner.page_nbytes, self._runner.num_pages)
        )
        host = torch.device("cpu")
        body = self._runner.read_pages(pages)
        self._runner.write_pages(pages, body)
        out_s = self._timed(lambda: self._runner.read_pages(pages))
        in_s = self._timed(lambda: self._runner.write_pages(pages, body))
        return [
            {
                "move": "out",
                "gb_per_s": round(len(body) / out_s / 1e9, 2),
                "pinned": round(self._gb_per_s(self._device, host), 2),
            },
            {
                "move": "in",
                "gb_per_s": round(len(body) / in_s / 1e9, 2),
                "pinned": round(self._gb_per_s(host, self._device), 2),
            },
        ]

    def _beside_compute(self) -> dict[str, Any]:
        """Decode steps alone, and with pages coming in for somebody else before each of them: how
        much of that cost nothing."""
        (sequence,) = batch = self._batch(1, self._scale.decode[0][1])
        free = range(len(sequence.block_table), self._runner.num_pages)
        pages = free[: max(1, self._scale.moved_nbytes // 8 // self._runner.page_nbytes)]
        body = self._runner.read_pages(pages)
        number = self._scale.num_decoded
        alone_s = self._steps(batch, number) / number
        beside_s = (
            self._steps(batch, number, lambda: self._runner.write_pages(pages, body)) / number
        )
        load_s = self._timed(lambda: self._runner.write_pages(pages, body))
        return {
            "move": "in, beside decoding",
            "hidden": round(1 - (beside_s - alone_s) / load_s, 3),
            "step_alone_ms": round(1000 * alone_s, 3),
            "step_beside_ms": round(1000 * beside_s, 3),
            "load_alone_ms": round(1000 * load_s, 3),
        }

    def _prefill(self, num_tokens: int, start: int) -> float:
        """Seconds until a prompt's first token, its first `start` tokens being there."""
        sequence = self._sequence(num_tokens, 0)
        begin_s = time.perf_counter()
        while start < num_tokens:
            end = min(start + self._scale.max_step_tokens, num_tokens)
            self._runner.step([Slice(sequence, start, end - start, sample=end == num_tokens)])
            start = end
        return time.perf_counter() - begin_s

    def _batch(self, num_sequences: int, num_tokens: int) -> list[Sequence]:
        """Sequences of that length in pages of their own, with room for what is decoded; whatever
        KV is there will do."""
        one = self._num_pages(num_tokens)
        return [self._sequence(num_tokens, i * one) for i in range(num_sequences)]

    def _sequence(self, num_tokens: int, first_page: int) -> Sequence:
        ids = random.Random(num_tokens).choices(range(3, self._vocabulary), k=num_tokens)
        pages = list(range(first_page, first_page + self._num_pages(num_tokens)))
        return Sequence(
            "speed",
            ids,
            num_tokens,
            Sampling(max_tokens=1 << 20, temperature=0.0),
            block_table=pages,
        )

    def _num_pages(self, num_tokens: int) -> int:
        return -(-(num_tokens + self._scale.num_decoded + 1) // self._runner.page_size)

    def _steps(
        self, batch: list[Sequence], number: int, before: Callable[[], object] = lambda: None
    ) -> float:
        """Seconds for so many steps at the same length: every one overwrites the last token's
        KV."""
        begin_s = time.perf_counter()
        for _ in range(number):
            before()
            self._runner.step([Slice(one, len(one.token_ids) - 1, 1, sample=True) for one in batch])
        return time.perf_counter() - begin_s

    def _gb_per_s(self, source: torch.device, target: torch.device) -> float:
        """Of one copy of bytes; memory of the host is pinned where there is a device."""
        nbytes = self._scale.copied_nbytes
        pins = self._device.type == "cuda"
        here, there = (
            torch.ones(
                nbytes, dtype=torch.uint8, device=place, pin_memory=pins and place.type == "cpu"
            )
            for place in (source, target)
        )
        there.copy_(here, non_blocking=True)
        return nbytes / self._timed(lambda: there.copy_(here, non_blocking=True)) / 1e9

    def _timed(self, work: Callable[[], object]) -> float:
        """Seconds until the device has done it."""
        self._synchronize()
        begin_s = time.perf_counter()
        work()
        self._synchronize()
        return time.perf_counter() - begin_s

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
