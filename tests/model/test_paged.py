"""The forward pass over a paged attention kernel: what the generic runner says,
whatever is in a step, recorded or not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from engine.errors import ModelError, ModelUnsupported
from engine.model.paged.cuda import DeviceFeatures
from engine.schedule.sequence import Sequence, Slice
from tests.fakes.paged_device import FakeCopies, FakeRecorder, eager_varlen, fake_kit
from tests.fakes.tiny_models import VOCABULARY
from tests.fakes.torch_driver import MIXED_ROWS, Driver, check_same, mixed_step

pytestmark = pytest.mark.engine

Folder = Callable[[str], Path]
TOKENS: Final = tuple(random.Random(11).choices(range(VOCABULARY), k=400))
OPTIONS: Final[dict[str, Any]] = {
    "dtype": "float32",
    "exact": "off",
    "context": 512,
    "max_sequences": 6,
}


@pytest.fixture(scope="module", params=["llama", "qwen3", "mistral"])
def trio(
    request: pytest.FixtureRequest, tiny_folder: Folder
) -> Iterator[tuple[Driver, Driver, Driver, FakeRecorder]]:
    """One family in float32 over pages with graphs, over pages without, and by the generic
    runner."""
    recorder = FakeRecorder()
    folder = tiny_folder(request.param)
    drivers = (
        Driver(folder, fake_kit(recorder), runner="lean", **OPTIONS),
        Driver(folder, DeviceFeatures(eager_varlen, None, None), runner="lean", **OPTIONS),
        Driver(folder, runner="generic", **OPTIONS),
    )
    yield *drivers, recorder
    for driver in drivers:
        driver.runner.close()


def decode(driver: Driver, batch: list[Sequence], tokens: tuple[int, ...]) -> None:
    """Feed all of them the same tokens, in one batch."""
    for token in tokens:
        for one in batch:
            one.token_ids.append(token)
        driver.runner.step([Slice(one, len(one.token_ids) - 1, 1, sample=True) for one in batch])


def test_step_of_everything(trio: tuple[Driver, Driver, Driver, FakeRecorder]) -> None:
    """Decoding, a draft, a prefill that goes on and one that ends in a single step, in pages of any
    order."""
    pages = [
        *(range(10 * i + 9, 10 * i - 1, -1) for i in range(3)),
        range(59, 39, -1),
        [70, 80, 75, 71],
    ]
    for driver in trio[:3]:
        mixed_step(driver, TOKENS, pages)
    for name, num_rows in MIXED_ROWS.items():
        for driver in trio[:2]:
            check_same(driver.logits[name], trio[2].logits[name], num_rows)


@pytest.mark.parametrize("num_sequences", [1, 3, 6])
def test_recorded_steps_are_what_they_would_be_unrecorded(
    trio: tuple[Driver, Driver, Driver, FakeRecorder], num_sequences: int
) -> None:
    """Batches of a recorded size and between two, as sequences grow into new pages."""
    before = sum(graph.num_replays for graph in trio[3].graphs)
    for driver in trio[:3]:
        batch = [
            driver.sequence(f"s{i}", TOKENS[i : 25 + 3 * i], range(20 * i, 20 * i + 4))
            for i in range(num_sequences)
        ]
        for one in batch:
            driver.prefill(one)
            one.token_ids.pop()
        decode(driver, batch, TOKENS[:12])
    assert sum(graph.num_replays for graph in trio[3].graphs) == before + 12
    for i in range(num_sequences):
        for driver in trio[:2]:
            check_same(driver.logits[f"s{i}"], trio[2].logits[f"s{i}"], 13)


def test_rows_that_fill_a_batch_up_touch_nobody(
    trio: tuple[Driver, Driver, Driver, FakeRecorder],
) -> None:
    """After a step of three in a graph of four, only the three's own slots have changed."""
    driver = trio[0]
    batch = [
        driver.sequence(f"s{i}", TOKENS[i : 40 + i], range(3 * i, 3 * i + 3)) for i in range(3)
    ]
    for one in batch:
        driver.prefill(one)
        one.token_ids.pop()
    others = [page for page in range(driver.runner.num_pages) if page not in (2, 5, 8)]
    before = driver.runner.read_pages(others)
    decode(driver, batch, (1,))
    assert driver.runner.read_pages(others) == before
    assert sorted(len(graph.output) for graph in trio[3].graphs) == [1, 2, 4, 6]


def test_a_hit_gives_the_answer_of_the_miss(
    trio: tuple[Driver, Driver, Driver, FakeRecorder],
) -> None:
    """Pages written back behind a prefill are waited for by the step that reads them, and by no
    other."""
    driver = trio[0]
    first = driver.sequence("miss", TOKENS[:100], range(7))
    driver.prefill(first)
    body = driver.runner.read_pages(range(6))
    driver.runner.write_pages(range(20, 26), body)
    hit = driver.sequence("hit", TOKENS[:100], [*range(20, 26), 26])
    driver.prefill(hit, 96)
    check_same(driver.logits["hit"], driver.logits["miss"], 1)


def test_a_device_that_takes_only_large_pages(tiny_folder: Folder) -> None:
    """Then pages are large, and hits end where they ended before; the fingerprint is another."""

    def large(query: torch.Tensor, key: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        if key.shape[1] % 256:
            raise RuntimeError("Paged KV cache block size must be divisible by 256")
        return eager_varlen(query, key, *rest, **options)

    drivers = [
        Driver(tiny_folder("llama"), DeviceFeatures(attend, None, None), runner="lean", **OPTIONS)
        for attend in (large, eager_varlen)
    ]
    assert [driver.runner.page_size for driver in drivers] == [256, 16]
    for driver in drivers:
        sequence = driver.sequence("one", TOKENS[:300], range(2 if driver is drivers[0] else 20))
        driver.prefill(sequence, 0, (130,))
    check_same(drivers[0].logits["one"], drivers[1].logits["one"], 1)
    assert drivers[0].runner.fingerprint != drivers[1].runner.fingerprint


def test_fingerprint_names_the_kernel(tiny_folder: Folder) -> None:
    """KV of one attention kernel is not another's, nor the processor's."""
    devices = [
        None,
        DeviceFeatures(None, None, None),
        DeviceFeatures(eager_varlen, None, None),
        fake_kit(),
    ]
    drivers = [
        Driver(tiny_folder("llama"), features, runner="lean", **OPTIONS) for features in devices
    ]
    prints = [driver.runner.fingerprint for driver in drivers]
    assert len(set(prints)) == 3
    assert prints[2] == prints[3]  # recorded steps and staged copies give the same bits


def test_the_generic_runner_has_staged_copies_too(tiny_folder: Folder) -> None:
    """A device's exact mode is the generic runner's, with pages of the size that was asked for."""
    copies = FakeCopies()
    driver = Driver(tiny_folder("llama"), fake_kit(copies=copies), **OPTIONS | {"exact": "on"})
    assert (driver.runner.name, driver.runner.exact, driver.runner.page_size) == (
        "generic",
        True,
        16,
    )
    driver.prefill(driver.sequence("one", TOKENS[:40], range(3)))
    body = driver.runner.read_pages([0, 1])
    driver.runner.write_pages([8, 9], body)
    driver.runner.copy_page(9, 3, 16)
    assert driver.runner.read_pages([3]) == body[len(body) // 2 :]
    assert copies.num_held == 1


def test_a_share_of_memory_is_the_devices_own(tiny_folder: Folder) -> None:
    """A device with memory of its own holds that share of it; without a share, and on a processor,
    the bytes that were said."""
    features = DeviceFeatures(eager_varlen, None, None, memory_nbytes=40 * 1024**2)
    sizes = []
    for device, share in ((features, 0.5), (features, 0.0), (None, 0.5)):
        runner = Driver(
            tiny_folder("llama"),
            device,
            kv_nbytes=10 * 1024**2,
            kv_share=share,
            runner="lean",
            **OPTIONS,
        ).runner
        sizes.append(round(runner.num_pages * runner.page_nbytes / 1024**2))
        runner.close()
    assert sizes == [20, 10, 10]


def test_a_pool_that_does_not_fit_is_said(
    tiny_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the device's name and the setting, not by a traceback."""

    def full(*dims: Any, **options: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("engine.model.load.load.KvPool", full)
    with pytest.raises(
        ModelError, match="kv_nbytes=67108864 does not fit on cpu beside the weights"
    ):
        Driver(tiny_folder("llama"), fake_kit(), runner="lean", **OPTIONS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there(tiny_folder: Folder) -> None:
    """CUDA asked for without a device is said plainly."""
    with pytest.raises(ModelError, match="sees no CUDA device"):
        Driver(tiny_folder("llama"), device="cuda")


def test_four_bits_are_for_the_processor(
    tiny_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4-bit weights on CUDA are refused before anything is loaded."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ModelUnsupported, match="4-bit weights are for the CPU, not for cuda"):
        Driver(tiny_folder("llama"), device="cuda", dtype="int4")
