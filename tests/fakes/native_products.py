"""Products through the native library on tensors, as tests want them."""

from __future__ import annotations

import torch

from engine.native.library import PANEL, Matrix, Team, library
from tests.fakes.native_kernels import STORE_F32, Product, kernels


class Packed:
    """A weight `[num_out, num_in]` in panels, and its bias."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.num_out, num_in = weight.shape
        size = -(-self.num_out // PANEL) * PANEL * num_in
        room = torch.empty(size + 32, dtype=torch.bfloat16)
        start = (-room.data_ptr() % 64) // 2
        self.panels = room[start : start + size]
        self.bias = bias
        weight = weight.contiguous()
        library().pcg_pack(weight.data_ptr(), self.num_out, num_in, self.panels.data_ptr())
        address = None if bias is None else bias.data_ptr()
        self.matrix = Matrix(self.panels.data_ptr(), address, num_in, self.num_out)

    def __call__(
        self, team: Team, rows: torch.Tensor, kind: int = STORE_F32, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The product of `rows` bf16, stored as `kind` says."""
        if out is None:
            dtype = torch.float32 if kind == STORE_F32 else torch.bfloat16
            out = torch.zeros((rows.shape[0], self.num_out), dtype=dtype)
        product = Product(rows.data_ptr(), out.data_ptr(), rows.shape[0], out.shape[1], kind)
        kernels().pcg_matmul(team.handle, self.matrix, product)
        return out
