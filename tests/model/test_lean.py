"""The lean runner's ways of attending: single rows that begin alike together,
long ones in products, pages in any order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ModelUnsupported
from engine.model.lean.rows import MAX_RUNS, MIN_SHARED, SequenceRows, SharedPrefixRows, plan_parts
from engine.model.llama.linear import INT4_GROUP, INT4_ROWS, Int4Linear
from engine.model.runs import SlotRun
from engine.schedule.sequence import Slice
from tests.fakes.tiny_models import VOCABULARY
from tests.fakes.torch_driver import MIXED_ROWS, Driver, check_same, mixed_step

pytestmark = pytest.mark.engine

TOKENS: Final = tuple(random.Random(9).choices(range(VOCABULARY), k=760))


@pytest.fixture(scope="module", params=["llama", "mistral"])
def pair(
    request: pytest.FixtureRequest, tiny_folder: Callable[[str], Path]
) -> Iterator[tuple[Driver, Driver]]:
    """One family in float32 by both runners, without a window and with one."""
    drivers = tuple(
        Driver(tiny_folder(request.param), dtype="float32", exact="off", runner=name)
        for name in ("lean", "generic")
    )
    yield drivers[0], drivers[1]
    for driver in drivers:
        driver.runner.close()


@pytest.mark.parametrize("order", ["one run", "few runs", "scattered"])
def test_one_long_sequence(pair: tuple[Driver, Driver], order: str) -> None:
    """Decoding behind 700 tokens gives what the generic runner gives, wherever the pages are."""
    pages = list(range(48))
    pages = {"one run": pages, "few runs": pages[20:] + pages[:20], "scattered": pages[::-1]}[order]
    for driver in pair:
        sequence = driver.sequence("long", TOKENS[:700], pages)
        driver.prefill(sequence, 0, (512,))
        driver.force(sequence, TOKENS[700:704])
    check_same(pair[0].logits["long"], pair[1].logits["long"], 5)


@pytest.mark.parametrize("num_shared", [48, 160, 640])
def test_sequences_that_share_pages(pair: tuple[Driver, Driver], num_shared: int) -> None:
    """A batch whose first pages are the same, a stranger in it, gives every sequence what it gets
    alone elsewhere."""
    names = ("a", "stranger", "b", "c")
    for driver in pair:
        first = driver.sequence("first", TOKENS[:num_shared], range(48))
        driver.prefill(first)
        batch = []
        for index, name in enumerate(names):
            own = list(range(60 + 20 * index, 80 + 20 * index))[:: 1 if index else -1]
            ids = TOKENS[:num_shared] + TOKENS[num_shared + index : num_shared + 40 + 3 * index]
            if name == "stranger":
                sequence = driver.sequence(name, ids[::-1], range(140, 190))
                driver.prefill(sequence)
            else:
                sequence = driver.sequence(name, ids, [*range(num_shared // 16), *own])
                driver.prefill(sequence, num_shared)
            sequence.token_ids[-1:] = [TOKENS[index]]
            batch.append(sequence)
        for token in TOKENS[:3]:
            driver.runner.step(
                [Slice(one, len(one.token_ids) - 1, 1, sample=True) for one in batch]
            )
            for one in batch:
                one.token_ids.append(token)
    for name in names:
        check_same(pair[0].logits[name], pair[1].logits[name], 4)


def test_step_of_everything(pair: tuple[Driver, Driver]) -> None:
    """Decoding, a draft, a prefill that goes on and one that ends in a single step: every row is
    the generic runner's."""
    pages = [*(range(10 * i, 10 * i + 10) for i in range(3)), range(40, 60), range(70, 75)]
    for driver in pair:
        mixed_step(driver, TOKENS, pages)
    for name, num_rows in MIXED_ROWS.items():
        check_same(pair[0].logits[name], pair[1].logits[name], num_rows)


@given(data=st.data())
def test_parts_hold_every_visible_slot_once(data: st.DataObject) -> None:
    """Whatever is taken together, each single row sees its own slots, all that its window leaves,
    in order."""
    window = data.draw(st.sampled_from([None, 5, 200]))
    spans = []
    for row in range(data.draw(st.integers(1, 6))):
        shared = data.draw(
            st.sampled_from([SlotRun(0, 100), SlotRun(0, 70), SlotRun(500, MIN_SHARED - 1)])
        )
        own = tuple(
            SlotRun(1000 * (row + 1) + 50 * i, 7)
            for i in range(data.draw(st.integers(0, MAX_RUNS + 1)))
        )
        runs = (shared, *own)
        spans.append(SequenceRows(row, 1, sum(run.num_slots for run in runs) - 1, runs))
    spans.append(SequenceRows(len(spans), 9, 20, (SlotRun(9000, 29),)))
    parts = plan_parts(spans, window, max_shared_rows=3)
    assert parts[-1] == spans[-1]
    seen: list[list[int]] = []
    for part in parts[:-1]:
        assert isinstance(part, SharedPrefixRows)
        assert part.num_rows <= 3
        assert part.row == len(seen)
        seen += [slots((part.shared, *own)) for own in part.own]
    assert seen == [slots(span.runs)[-window if window else 0 :] for span in spans[:-1]]


def slots(runs: tuple[SlotRun, ...]) -> list[int]:
    """All slots of the runs, in order."""
    return [slot for run in runs for slot in range(run.first, run.first + run.num_slots)]


@pytest.mark.parametrize("num_rows", [1, INT4_ROWS, INT4_ROWS + 1, 40])
def test_int4_is_one_matrix_for_any_number_of_rows(num_rows: int) -> None:
    """Few rows meet the codes and many their values in bf16: both are the quantized matrix, but for
    bf16's rounding."""
    torch.manual_seed(3)
    weight, bias = torch.randn(64, 96).bfloat16(), torch.randn(64).bfloat16()
    rows = torch.randn(num_rows, 96).bfloat16()
    linear = Int4Linear(weight, bias)
    unit = torch.eye(96).bfloat16()
    values = (linear(unit).float() - bias.float()).T
    spread = weight.float().view(64, -1, INT4_GROUP)
    step = ((spread.amax(2) - spread.amin(2)) / 15).repeat_interleave(INT4_GROUP, 1)
    assert bool(((values - weight.float()).abs() <= 0.5 * step + 0.03).all())
    truth = rows.float() @ values.T + bias.float()
    assert float((linear(rows).float() - truth).abs().max()) < 0.02 * float(truth.abs().max())


def test_int4_hits_stay_in_bound(tiny_folder: Callable[[str], Path]) -> None:
    """Prefilled at once or token by token, a quantized model gives the same logits within bf16's
    bound."""
    driver = Driver(tiny_folder("qwen2"), dtype="int4")
    assert driver.runner.name == "lean"
    whole, single = (
        driver.sequence("whole", TOKENS[:90], range(6)),
        driver.sequence("single", TOKENS[:80], range(10, 16)),
    )
    driver.prefill(whole)
    driver.prefill(single)
    driver.force(single, TOKENS[80:90])
    ours, theirs = driver.logits["single"][90], driver.logits["whole"][90]
    assert float((ours - theirs).abs().max()) < 0.08 * float(theirs.max() - theirs.min())
    driver.runner.close()


@pytest.mark.parametrize("options", [{"runner": "generic"}, {"exact": "on"}], ids=str)
def test_int4_is_refused_where_lean_cannot_run(
    tiny_folder: Callable[[str], Path], options: dict[str, str]
) -> None:
    """Quantized weights are never silently plain ones."""
    with pytest.raises(ModelUnsupported, match="int4"):
        Driver(tiny_folder("llama"), dtype="int4", **options)
