"""The benchmark of the native kernels: what it compares is the same, and what fails it."""

from __future__ import annotations

import pytest
import torch
from rich.console import Console

from bench import kernels
from bench.kernels import KernelFigures, measure_kernels, show_kernels, torch_attention
from engine.native.library import why_not_native
from tests.fakes.native_attention import Pool, Rows, defined

pytestmark = pytest.mark.engine

QUIET = Console(quiet=True)


@pytest.mark.parametrize(
    "rows", [Rows(0, 40, (0, 1, 2)), Rows(17, 20, (0, 1, 2)), Rows(40, 1, (0, 1, 2))]
)
def test_torch_is_asked_for_the_same(rows: Rows) -> None:
    """A prompt, a later chunk and a single row, by torch's fused kernel and by definition."""
    key, value = torch.randn(2, 48, 3, 64).bfloat16().unbind()
    pool, query = Pool(key, value, 16, 9), torch.randn(rows.num_rows, 9, 64).bfloat16()
    wanted = defined(pool, [rows], query)
    torch.testing.assert_close(
        torch_attention(pool, [rows], query).float(), wanted, rtol=2**-6, atol=2**-6
    )


@pytest.mark.parametrize(
    ("kind", "torch_s", "good"),
    [("product", 0.81, True), ("product", 0.79, False), ("attention", 0.99, False)],
)
def test_kernels_that_are_slower_than_torch_fail_the_section(
    kind: str, torch_s: float, good: bool
) -> None:
    """Each kind has its target; no library is no failure."""
    assert show_kernels(QUIET, [KernelFigures("a", kind, 1e9, 10, 1.0, torch_s)]) is good
    assert show_kernels(QUIET, [])


@pytest.mark.skipif(why_not_native() is not None, reason=str(why_not_native()))
def test_every_case_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few turns over little memory and short prompts: every case has its figures, and torch its
    threads again."""
    for name, value in {
        "COLD_NBYTES": 1,
        "PRODUCT_ROWS": (1, 8),
        "PREFILLS": ((0, 40), (30, 9)),
        "DECODES": (50,),
    }.items():
        monkeypatch.setattr(kernels, name, value)
    before = torch.get_num_threads()
    figures = measure_kernels(case_s=0)
    assert [row.kind for row in figures] == ["product"] * 6 + ["attention"] * 4
    assert all(row.native_s > 0 and row.torch_s > 0 for row in figures)
    assert torch.get_num_threads() == before
