"""Matrix products with weights that never change, in the layout this machine multiplies fastest.
Knows no model."""

from __future__ import annotations

from typing import Any, Final, Protocol

import torch
import torch.nn.functional as F

# Torch's own kernels behind Inductor's linears; not part of the public API, so every use has a
# fallback.
_ONEDNN: Final[Any] = torch.ops.mkldnn

INT4_GROUP: Final = 32
"""Inputs that share a scale: as in the GGUF formats Q4_0 and Q4_1, whose values come out nearly as
they were."""

INT4_ROWS: Final = 4
"""The number of rows up to which 4-bit codes are faster than bf16.

All linears of the default model take 4.8 ms and 12.0 for one row, 7.8 and 10.6 for 4, 14.2 and 12.8
for 8. Torch's kernel for 8 bits takes 9.6, 14.2 and 33, so it is not used.
"""


class Linear(Protocol):
    """`y = x W^T + b` for a matrix fixed at load time."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """`[num_rows, num_in]` to `[num_rows, num_out]`, in the dtype of the rows. A row's values
        depend on no other row."""
        ...


class PlainLinear:
    """The product as torch does it, `weight [num_out, num_in]`."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return F.linear(rows, self._weight, self._bias)


class PackedLinear:
    """The same, with the weight in oneDNN's blocked layout: same bits, and up to half the time for
    a few rows.

    Measured with torch 2.13 on AVX512-BF16: `[3072, 576]` 138 -> 68 µs for one row, 229 -> 150 for
    8, the same from 512 on.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = _ONEDNN._reorder_linear_weight(weight, 1)
        self._bias = bias

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = _ONEDNN._linear_pointwise(
            rows, self._weight, self._bias, "none", [], ""
        )
        return product


class Int4Linear:
    """The product with weights of 4 bits: a scale and an offset in bf16 for every `INT4_GROUP`
    inputs of an output.

    Few rows are multiplied with the codes themselves, which streams a quarter of the bytes; more
    rows with the same values written out in bf16, as that kernel's time grows with the rows.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        codes, scale, offset = _int4(weight)
        values = _values(codes, scale, offset).to(weight.dtype)
        self._codes = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.flatten(1).int(), 1)
        self._scales = torch.cat([scale, offset], dim=2).transpose(0, 1).bfloat16().contiguous()
        self._bias = bias
        self._values = (PackedLinear if can_pack(values) else PlainLinear)(values, bias)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        if rows.shape[0] > INT4_ROWS:
            return self._values(rows)
        product: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            rows, self._codes, INT4_GROUP, self._scales
        )
        return product if self._bias is None else product.add_(self._bias)


def int4_values(weight: torch.Tensor) -> torch.Tensor:
    """The values that `Int4Linear` has for a weight, in its dtype."""
    return _values(*_int4(weight)).to(weight.dtype)


def _int4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes 0 to 15 `[num_out, num_groups, INT4_GROUP]`, scale and offset `[num_out, num_groups,
    1]`, all fp32."""
    groups = weight.float().view(weight.shape[0], -1, INT4_GROUP)
    low, high = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)
    scale = ((high - low) / 15).clamp_min(1e-8).bfloat16().float()
    offset = (low + 8 * scale).bfloat16().float()
    return ((groups - offset) / scale + 8).round_().clamp_(0, 15), scale, offset


def _values(codes: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    return ((codes - 8) * scale + offset).flatten(1)


def can_quantize(num_in: int, num_out: int) -> bool:
    """True if torch's kernel for 4-bit weights takes a matrix of these sizes."""
    return num_in % INT4_GROUP == 0 and num_out % 16 == 0


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """The fastest `Linear` of that weight on its device."""
    return (PackedLinear if can_pack(weight) else PlainLinear)(weight, bias)


def can_pack(weight: torch.Tensor) -> bool:
    """True if `PackedLinear` works for this weight here: bf16 on a CPU whose oneDNN multiplies
    it."""
    if (
        weight.device.type != "cpu"
        or weight.dtype is not torch.bfloat16
        or not torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    ):
        return False
    needed = ("_is_mkldnn_bf16_supported", "_reorder_linear_weight", "_linear_pointwise")
    return all(hasattr(_ONEDNN, name) for name in needed) and bool(
        _ONEDNN._is_mkldnn_bf16_supported()
    )
