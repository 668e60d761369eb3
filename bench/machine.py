"""What a measurement was made on: processor, versions, date. Loads no torch."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path


def describe() -> Mapping[str, str]:
    """Facts that belong beside every figure."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": f"{processor()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
        "pcg": version("prompt-cache-gateway"),
        "load": f"{os.getloadavg()[0]:.1f} running processes in the minute before",
    }


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, with the matrix and vector extensions that decide its speed here."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return platform.machine()
    fields = {
        name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    flags = set(fields.get("flags", "").split())
    extensions = [name for name in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if name in flags]
    return (
        f"{fields.get('model name', platform.machine())} "
        f"({', '.join(extensions[:2]) or 'no vector extensions'})"
    )
