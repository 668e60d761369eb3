"""The probe for an attention kernel: takes the best that is right,
and says what was wrong with the others.
"""

from __future__ import annotations

import inspect
import logging
from typing import Any, Final

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.varlen import varlen_attn

from engine.model.paged.attention import GatheredKernel, PagedRows, VarlenKernel
from engine.model.paged.probe import HeadShape, choose_kernel, why_not
from tests.fakes.paged_device import eager_varlen

pytestmark = pytest.mark.engine

CPU: Final = torch.device("cpu")
HEADS: Final = HeadShape(
    num_heads=4, num_kv_heads=2, head_dim=8, dtype=torch.float32, windows=(None, 24)
)


def choose(attend: Any, sizes: tuple[int, ...] = (16, 256)) -> tuple[str, int, int]:
    """The kernel's name, its page size, and how many were refused."""
    choice = choose_kernel(attend, HEADS, sizes, CPU)
    return choice.kernel.name, choice.page_size, len(choice.refused)


def test_the_first_candidate_is_the_best() -> None:
    """Small pages, splits as the kernel likes."""
    assert choose(eager_varlen) == ("varlen/splits=auto/paged", 16, 0)


def test_a_kernel_that_needs_large_pages_and_counted_keys() -> None:
    """As FlashAttention 2 in torch: refused in so many words until it gets both."""

    def second(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cu_q: Any,
        cu_k: Any,
        *rest: Any,
        **options: Any,
    ) -> Any:
        if key.shape[1] % 256:
            raise RuntimeError(
                "Paged KV cache block size must be divisible by 256\nException raised from "
                "mha_varlen_fwd"
            )
        if cu_k is None:
            raise RuntimeError("cum_seq_k must be given")
        return eager_varlen(query, key, value, cu_q, cu_k, *rest, **options)

    choice = choose_kernel(second, HEADS, (16, 256), CPU)
    assert (choice.kernel.name, choice.page_size) == ("varlen/splits=auto/cu_keys", 256)
    assert choice.refused[0] == (
        "varlen/splits=auto/paged, pages of 16: RuntimeError: Paged KV cache block size must be "
        "divisible by 256"
    )


@pytest.mark.parametrize("only", ["mixed", "single"])
def test_wrong_sums_of_split_keys_are_found(only: str) -> None:
    """A kernel that loses a part of a long sequence's keys when it may split them is asked not
    to."""

    def forgetful(
        query: torch.Tensor,
        *rest: Any,
        num_splits: int | None = None,
        seqused_k: torch.Tensor,
        **options: Any,
    ) -> Any:
        if num_splits is None and (rest[4] == 1) == (only == "single"):
            seqused_k = torch.where(seqused_k > 2000, seqused_k - 64, seqused_k)
        return eager_varlen(query, *rest, num_splits=num_splits, seqused_k=seqused_k, **options)

    assert choose(forgetful) == ("varlen/splits=1/paged", 16, 2)


def test_a_window_that_is_ignored_is_found() -> None:
    """A kernel that attends to what a window hides is not taken for a model with windows."""

    def wide(*rest: Any, window_size: tuple[int, int], **options: Any) -> Any:
        return eager_varlen(*rest, window_size=(-1, window_size[1]), **options)

    assert choose(wide, (16,)) == ("gathered", 16, 4)
    assert "window 24" in choose_kernel(wide, HEADS, (16,), CPU).refused[0]


def test_not_a_number_is_wrong() -> None:
    """Whatever a kernel makes of rows it was not told of, no comparison with NaN takes it."""
    kernel = VarlenKernel(
        lambda query, *rest, **options: query * float("nan"), num_splits=None, counts_keys=False
    )
    assert "wrong by nan%" in str(why_not(kernel, HEADS, 16, CPU))


def test_torch_without_it_and_torch_for_the_processor(caplog: pytest.LogCaptureFixture) -> None:
    """Then attention is plain, over pages of the size asked for, and one line of the log says
    why."""
    with caplog.at_level(logging.INFO, "engine.model.paged.probe"):
        assert choose(None) == ("gathered", 16, 1)
        assert choose(varlen_attn) == ("gathered", 16, 8)
    assert [record.message for record in caplog.records] == ["attention kernel chosen"] * 2
    fields = caplog.records[0].__dict__["fields"]
    assert fields == {
        "kernel": "gathered",
        "page_size": 16,
        "refused": ["this torch has no varlen_attn"],
    }


def test_the_fake_has_torchs_signature() -> None:
    """What tests inject takes torch's own arguments, but for the one nobody passes."""
    theirs = inspect.signature(varlen_attn).parameters
    ours = inspect.signature(eager_varlen).parameters
    assert list(ours) == [name for name in theirs if name != "return_aux"]
    assert [one.kind for one in ours.values()] == [
        one.kind for name, one in theirs.items() if name != "return_aux"
    ]


@pytest.mark.parametrize("window", [None, 24])
@pytest.mark.parametrize("max_rows", [1, 5])
@pytest.mark.parametrize(("num_splits", "counts_keys"), [(None, False), (1, True)])
def test_torch_takes_what_it_is_called_with(
    num_splits: int | None, window: int | None, max_rows: int, *, counts_keys: bool
) -> None:
    """Its own function, on tensors without values: types, shapes and names of arguments, whatever
    kernel were behind it."""
    with FakeTensorMode():
        counts = torch.zeros(3, dtype=torch.int32)
        table = torch.zeros((2, 4), dtype=torch.int32)
        rows = PagedRows(counts, counts, counts[1:], table, max_rows, 60)
        query = torch.zeros((2 * max_rows, 4, 8), dtype=torch.bfloat16)
        pages = torch.zeros((9, 16, 2, 8), dtype=torch.bfloat16)
        out = VarlenKernel(varlen_attn, num_splits=num_splits, counts_keys=counts_keys)(
            query, pages, pages, rows, window
        )
        assert (out.shape, out.dtype) == (query.shape, query.dtype)


@pytest.mark.parametrize("page_size", [16, 256])
def test_plain_attention_is_right(page_size: int) -> None:
    """What everything is compared with agrees with attention row by row."""
    assert (
        why_not(
            VarlenKernel(eager_varlen, num_splits=None, counts_keys=False), HEADS, page_size, CPU
        )
        is None
    )
    assert not GatheredKernel.recordable
