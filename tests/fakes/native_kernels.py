"""The kernels that a step of the native library is made of, to be called one by one."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_void_p
from functools import cache
from typing import Any, Final

from engine.native.library import HeadsStruct, Matrix, SpanStruct, library


class Product(ctypes.Structure):
    """`pcg_product`."""

    _fields_ = (
        ("rows", c_void_p),
        ("out", c_void_p),
        ("num_rows", c_int32),
        ("stride", c_int32),
        ("kind", c_int32),
    )


class AttentionStruct(ctypes.Structure):
    """`pcg_attention`."""

    _fields_ = (("query", c_void_p), ("key", c_void_p), ("value", c_void_p), ("out", c_void_p))


STORE_BF16, STORE_F32, ADD_F32, GATE_BF16 = range(4)
"""Kinds of a `Product`."""

_FUNCTIONS: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "pcg_plan_new": (
        c_void_p,
        (ctypes.POINTER(SpanStruct), c_int32, ctypes.POINTER(HeadsStruct), c_int32, c_void_p),
    ),
    "pcg_plan_free": (None, (c_void_p,)),
    "pcg_attend_all": (None, (c_void_p, ctypes.POINTER(AttentionStruct), c_void_p)),
    "pcg_matmul": (None, (c_void_p, ctypes.POINTER(Matrix), ctypes.POINTER(Product))),
}


@cache
def kernels() -> ctypes.CDLL:
    """The native library with these functions declared, too."""
    loaded = library()
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded
