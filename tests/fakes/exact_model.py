"""The default model in exact mode, for a stepper: what any two ways to an answer must agree on,
bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.config import EngineConfig
from engine.model.load.load import load_runner
from engine.model.runner import LogitsSink
from engine.prompt.tokenizer import HfTokenizer
from tests.fakes.stepper import RealModel


@contextmanager
def exact_model(
    folder: Path, context: int, logits_sink: LogitsSink | None = None
) -> Iterator[RealModel]:
    """Loaded from `folder`, with a pool of about 2,800 tokens; released afterwards."""
    config = EngineConfig(
        model="m",
        model_path=str(folder),
        root_secret=b"0123456789abcdef",
        context=context,
        kv_nbytes=64 * 1024**2,
        exact="on",
    )
    runner = load_runner(config, logits_sink)
    yield RealModel(runner, HfTokenizer.from_folder(folder), config.block_size)
    runner.close()
