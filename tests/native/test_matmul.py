"""Packed products: right,
and the same bits for a row whatever is computed beside it and by however many threads.
"""

from __future__ import annotations

import pytest
import torch

from engine.native.library import Team
from tests.fakes.native_kernels import ADD_F32, GATE_BF16, STORE_BF16, STORE_F32
from tests.fakes.native_products import Packed

pytestmark = pytest.mark.engine

SIZES = ((64, 64), (960, 576), (70, 34), (1, 2), (200, 130))


def random(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator)


@pytest.mark.parametrize("num_rows", [1, 2, 5, 6, 7, 97, 200])
@pytest.mark.parametrize(("num_out", "num_in"), SIZES)
def test_a_product_is_that_of_fp32(team: Team, num_out: int, num_in: int, num_rows: int) -> None:
    """Sums of bf16 products in fp32, with a bias, for sizes that fill no panel and no tile."""
    weight, rows, bias = (
        random(num_out, num_in).bfloat16(),
        random(num_rows, num_in).bfloat16(),
        random(num_out),
    )
    wanted = rows.float() @ weight.float().T + bias
    torch.testing.assert_close(
        Packed(weight, bias)(team, rows), wanted, rtol=1e-4, atol=1e-4 * num_in**0.5
    )


@pytest.mark.parametrize("kind", [STORE_F32, STORE_BF16])
def test_a_row_has_the_same_bits_in_any_company(team: Team, kind: int) -> None:
    """Each of 200 rows alone, and in batches of every size up to 13, has the bits it has among all
    of them."""
    packed, rows = Packed(random(200, 130).bfloat16()), random(200, 130).bfloat16()
    together = packed(team, rows, kind)
    for size in range(1, 14):
        assert torch.equal(
            packed(team, rows[50 : 50 + size].contiguous(), kind), together[50 : 50 + size]
        )


def test_bits_do_not_depend_on_the_number_of_threads(team: Team) -> None:
    """One thread, two and three give the same."""
    packed, rows = Packed(random(200, 130).bfloat16()), random(100, 130).bfloat16()
    alone = Team(1)
    assert torch.equal(packed(team, rows), packed(alone, rows))
    alone.close()


def test_a_product_can_be_added_to_what_is_there(team: Team) -> None:
    """The residual in fp32: exactly the stored product plus what was there."""
    packed, rows, before = (
        Packed(random(100, 64).bfloat16()),
        random(9, 64).bfloat16(),
        random(9, 100),
    )
    assert torch.equal(packed(team, rows, ADD_F32, before.clone()), before + packed(team, rows))


def test_a_gate_multiplies_what_it_gates(team: Team) -> None:
    """Panels with 32 outputs of the gate and 32 of the other give silu(gate) * up in bf16."""
    gate, up, rows = (
        random(96, 64).bfloat16(),
        random(96, 66)[:, :64].bfloat16(),
        random(13, 64).bfloat16(),
    )
    mixed = torch.stack([gate.view(-1, 32, 64), up.reshape(-1, 32, 64)], dim=1).view(-1, 64)
    out = Packed(mixed)(team, rows, GATE_BF16, torch.zeros((13, 96), dtype=torch.bfloat16))
    exact = torch.nn.functional.silu(rows.float() @ gate.float().T) * (rows.float() @ up.float().T)
    torch.testing.assert_close(out.float(), exact, rtol=2**-7, atol=1e-3)


def test_many_products_after_one_another(team: Team) -> None:
    """Threads that are still at the end of one piece of work do not disturb the next."""
    packed, rows = Packed(random(64, 64).bfloat16()), random(3, 64).bfloat16()
    wanted = packed(team, rows)
    assert all(torch.equal(packed(team, rows), wanted) for _ in range(2000))
