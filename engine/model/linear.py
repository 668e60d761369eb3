"""Matrix products with weights that never change, in the layout this machine multiplies fastest. Knows no model."""

from __future__ import annotations

from typing import Any, Final, Protocol

import torch
import torch.nn.functional as F

# Torch's own kernels behind Inductor's linears; not part of the public API, so every use has a fallback.
_ONEDNN: Final[Any] = torch.ops.mkldnn


class Linear(Protocol):
    """`y = x W^T + b` for a matrix fixed at load time."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """`[num_rows, num_in]` to `[num_rows, num_out]`, in the dtype of the rows. A row's values depend on no other row."""
        ...


class PlainLinear:
    """The product as torch does it, `weight [num_out, num_in]`."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return F.linear(rows, self._weight, self._bias)


class PackedLinear:
    """The same, with the weight in oneDNN's blocked layout: same bits, and up to half the time for a few rows.

    Measured with torch 2.13 on AVX512-BF16: `[3072, 576]` 138 -> 68 µs for one row, 229 -> 150 for 8, the same from 512 on.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = _ONEDNN._reorder_linear_weight(weight, 1)
        self._bias = bias

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = _ONEDNN._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
        return product


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """The fastest `Linear` of that weight on its device."""
    return (PackedLinear if can_pack(weight) else PlainLinear)(weight, bias)


def can_pack(weight: torch.Tensor) -> bool:
    """Whether `PackedLinear` works for this weight here: bf16 on a CPU whose oneDNN multiplies it."""
    if weight.device.type != "cpu" or weight.dtype is not torch.bfloat16 or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    needed = ("_is_mkldnn_bf16_supported", "_reorder_linear_weight", "_linear_pointwise")
    return all(hasattr(_ONEDNN, name) for name in needed) and bool(_ONEDNN._is_mkldnn_bf16_supported())
