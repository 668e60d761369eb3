"""Finds and loads the native library, or gives the reason why it cannot be used.

Knows no model; what it passes are addresses.
"""

from __future__ import annotations

import ctypes
import weakref
from functools import cache
from pathlib import Path
from typing import Any, Final

from engine.errors import ModelUnsupported

ABI: Final = 3
"""`PCG_ABI` of `src/pcg.h` that these declarations were written for."""

PATH: Final = Path(__file__).with_name("libpcg.so")
CPU_FLAGS: Final = frozenset(
    {"avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16"}
)
"""The processor features that the library is compiled for, by the kernel's names."""

_CPU_INFO: Final = Path("/proc/cpuinfo")
_INT: Final = ctypes.c_int32
_POINTER: Final = ctypes.c_void_p


class Matrix(ctypes.Structure):
    """`pcg_matrix`."""

    _fields_ = (("panels", _POINTER), ("bias", _POINTER), ("num_in", _INT), ("num_out", _INT))


class SpanStruct(ctypes.Structure):
    """`pcg_span`."""

    _fields_ = (
        ("row", _INT),
        ("num_rows", _INT),
        ("start", _INT),
        ("num_pages", _INT),
        ("pages", _POINTER),
    )


class HeadsStruct(ctypes.Structure):
    """`pcg_heads`."""

    _fields_ = (
        ("num_heads", _INT),
        ("num_kv_heads", _INT),
        ("head_dim", _INT),
        ("page_size", _INT),
    )


class Layer(ctypes.Structure):
    """`pcg_layer`."""

    _fields_ = (
        *(("qkv", Matrix), ("out", Matrix), ("gate_up", Matrix), ("down", Matrix)),
        *(("attention_norm", _POINTER), ("mlp_norm", _POINTER), ("qk_norm", _POINTER)),
        *(("key", _POINTER), ("value", _POINTER), ("window", _INT)),
    )


class Model(ctypes.Structure):
    """`pcg_model`."""

    _fields_ = (
        *(("layers", _POINTER), ("embedding", _POINTER), ("norm", _POINTER), ("turns", _POINTER)),
        *(
            ("head", Matrix),
            ("heads", HeadsStruct),
            ("num_layers", _INT),
            ("hidden", _INT),
            ("eps", ctypes.c_float),
        ),
    )


class Step(ctypes.Structure):
    """`pcg_step`."""

    _fields_ = (
        *(
            ("token_ids", _POINTER),
            ("num_sampled", _POINTER),
            ("spans", _POINTER),
            ("logits", _POINTER),
        ),
        *(("num_spans", _INT), ("num_rows", _INT)),
    )


class Pages(ctypes.Structure):
    """`pcg_pages`."""

    _fields_ = (
        ("planes", _POINTER),
        ("stride", ctypes.c_int64),
        ("part", ctypes.c_int64),
        ("num_planes", _INT),
    )


MAX_WINDOWS: Final = 8
"""Different windows a model's layers may have."""

PANEL: Final = 64
"""`PCG_PANEL`."""

_FUNCTIONS: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "pcg_abi": (_INT, ()),
    "pcg_bits": (_INT, ()),
    "pcg_team_new": (_POINTER, (ctypes.c_int,)),
    "pcg_team_free": (None, (_POINTER,)),
    "pcg_pack": (None, (_POINTER, _INT, _INT, _POINTER)),
    "pcg_put_pages": (None, (ctypes.POINTER(Pages), _POINTER, _INT, _POINTER)),
    "pcg_take_pages": (None, (ctypes.POINTER(Pages), _POINTER, _INT, _POINTER)),
    "pcg_forward": (_INT, (_POINTER, ctypes.POINTER(Model), ctypes.POINTER(Step))),
}
"""Result and arguments of what is called."""


def why_not_native() -> str | None:
    """The reason why the native library cannot be used here; None where it can: then it is
    loaded."""
    try:
        library()
    except ModelUnsupported as error:
        return str(error)
    return None


def _why_not(path: Path, cpu_info: Path) -> str | None:
    if not path.exists():
        return "the native library is not built (make venv builds it)"
    try:
        text = cpu_info.read_text()
    except OSError:
        return "this system does not say what its processor can do"
    missing = CPU_FLAGS - _cpu_flags(text)
    if missing:
        return f"this processor has no {', '.join(sorted(missing))}"
    return None


def _cpu_flags(text: str) -> frozenset[str]:
    """The first processor's features in the text of `/proc/cpuinfo`."""
    for line in text.splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def library() -> ctypes.CDLL:
    """The library, loaded once in a process. Raises `ModelUnsupported`, with the reason, where it
    cannot be used."""
    return _load(PATH, _CPU_INFO)


@cache
def _load(path: Path, cpu_info: Path) -> ctypes.CDLL:
    reason = _why_not(path, cpu_info)
    if reason is not None:
        raise ModelUnsupported(reason)
    try:
        loaded = ctypes.CDLL(str(path))
        if loaded.pcg_abi() != ABI:
            raise ModelUnsupported(
                "the native library was built from other sources; make venv builds it anew"
            )
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise ModelUnsupported(f"the native library cannot be loaded: {error}") from error
    return loaded


class Team:
    """Threads that compute together, `num_threads` with the caller; ended by `close`. Used by one
    thread at a time."""

    def __init__(self, num_threads: int) -> None:
        if num_threads < 1:
            raise ValueError("a team has at least one thread")
        handle: int | None = library().pcg_team_new(num_threads)
        if handle is None:
            raise ModelUnsupported(f"{num_threads} threads cannot be started")
        self._handle = handle
        self._end = weakref.finalize(self, library().pcg_team_free, handle)
        # At exit another thread may still be computing, and nothing is left to give back.
        self._end.atexit = False

    @property
    def handle(self) -> int:
        """The team as the library knows it. Raises `RuntimeError` after `close`."""
        if not self._end.alive:
            raise RuntimeError("the team of threads is closed")
        return self._handle

    def close(self) -> None:
        """End the threads. Idempotent."""
        self._end()
