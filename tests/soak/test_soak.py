"""Twenty conversations over tiers too small for them, on a tiny model: five hundred answers,
all those of an uncached run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, pre_tokenizers
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from bench.soaking import SHARED, SoakSizes, answering, soak, watching
from engine.config import EngineConfig
from engine.model.load.load import load_runner
from engine.store.disk.kind import SsdSpec
from engine.store.redis.kind import RedisSpec
from tests.fakes.redis_server import RedisServer
from tests.fakes.tiny_models import save_tiny_model
from tests.fakes.tokenizer import CHATML_TOKENS

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.long]

MIB = 1024**2
CONTEXT = 896
TOKEN_NBYTES = 3 * 2 * 2 * 16 * 4
"""Layers, keys and values, heads, width, fp32."""
POOL_NBYTES = CONTEXT * TOKEN_NBYTES
SSD_NBYTES = 3 * MIB
GROWTH_NBYTES = 32 * MIB


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama with a vocabulary of bytes and ChatML's control tokens."""
    path = save_tiny_model("llama", tmp_path_factory.mktemp("llama"))
    tokenizer = Tokenizer(
        BPE({character: i for i, character in enumerate(sorted(ByteLevel.alphabet()))}, [])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in CHATML_TOKENS])
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"})
    )
    return path


def config(folder: Path, **options: Any) -> EngineConfig:
    """An exact engine whose pool holds the longest conversation, and no two."""
    return EngineConfig(
        model="tiny",
        model_path=str(folder),
        root_secret=b"0123456789abcdef",
        dtype="float32",
        exact="on",
        template="chatml",
        context=CONTEXT,
        kv_nbytes=POOL_NBYTES,
        num_threads=1,
        **options,
    )


def test_no_conversation_ever_hears_another(folder: Path, tmp_path: Path) -> None:
    """Spilled at every turn to an SSD and a Redis that hold a part of it all, every answer is the
    cold one; the caps hold at every moment, memory does not grow, and nothing is left over."""
    sizes = SoakSizes(num_turns=500, context=CONTEXT, max_tokens=3, num_shared=2, num_own=6)
    with RedisServer(tmp_path, maxmemory="12mb") as server, server.client() as client:
        client.config_set("maxmemory-policy", "volatile-lru")
        ssd = tmp_path / "kv"
        tiers = (SsdSpec(str(ssd), SSD_NBYTES), RedisSpec(server.url, timeout_s=1.0))
        with (
            answering(config(folder)) as uncached,
            answering(config(folder, force_store=True, tiers=tiers)) as asked,
            watching(ssd) as watch,
        ):
            findings = soak(asked, uncached, sizes, watch)
    assert findings.num_turns == 500
    assert 2 * findings.least_prompt - 2 * len(SHARED) - 64 > CONTEXT, (
        "no two fit, though they begin alike"
    )
    assert findings.num_unequal == 0
    assert findings.num_foreign == 0
    assert min(findings.num_tokens_by_tier[tier] for tier in ("ssd", "redis")) > 1000
    assert SSD_NBYTES / 2 < findings.most_ssd_nbytes <= SSD_NBYTES
    assert SSD_NBYTES / 2 < findings.most_gauges["tier_ssd_nbytes"] <= SSD_NBYTES
    assert findings.most_gauges["cache_device_nbytes"] <= POOL_NBYTES
    assert findings.grown_nbytes <= GROWTH_NBYTES
    assert findings.leaks == {}


def test_a_soak_sees_what_is_wrong(folder: Path, tmp_path: Path) -> None:
    """The same, small, with a device that turns around the bytes of every page a tier gives back:
    answers differ."""
    sizes = SoakSizes(
        num_turns=40, context=CONTEXT, max_tokens=3, num_conversations=4, num_shared=2, num_own=6
    )
    settings = config(folder, force_store=True, tiers=(SsdSpec(str(tmp_path / "kv"), SSD_NBYTES),))
    runner = load_runner(settings)
    write_pages = runner.write_pages

    def write_turned(pages: Sequence[int], body: memoryview) -> None:
        write_pages(pages[::-1], memoryview(bytes(body[::-1])))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "write_pages", write_turned)
        with (
            answering(config(folder)) as uncached,
            answering(settings, runner) as asked,
            watching(tmp_path / "kv") as watch,
        ):
            findings = soak(asked, uncached, sizes, watch)
    assert findings.num_tokens_by_tier["ssd"] > 0
    assert findings.num_unequal > 0
