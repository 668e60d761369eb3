"""Where the native library cannot be used, the loader says why."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.native import library
from engine.native.library import ABI, CPU_FLAGS, Team, _why_not
from tests.fakes.native import NEEDS_NATIVE

SOURCES = Path(library.__file__).parent / "src"


def test_no_library_is_named(tmp_path: Path) -> None:
    """A checkout in which nothing was built."""
    assert (
        _why_not(tmp_path / "none.so", tmp_path)
        == "the native library is not built (make venv builds it)"
    )


@pytest.mark.parametrize("missing", sorted(CPU_FLAGS))
def test_a_processor_without_a_feature_is_named(tmp_path: Path, missing: str) -> None:
    """Each of the features the library uses is looked for."""
    info = tmp_path / "cpuinfo"
    info.write_text(f"processor : 0\nflags\t\t: fpu {' '.join(CPU_FLAGS - {missing})}\n")
    assert _why_not(info, info) == f"this processor has no {missing}"
    info.write_text(f"flags : {' '.join(CPU_FLAGS)}\n")
    assert _why_not(info, info) is None


def test_a_system_that_does_not_tell_is_named(tmp_path: Path) -> None:
    """No `/proc/cpuinfo`."""
    (tmp_path / "lib.so").touch()
    assert (
        _why_not(tmp_path / "lib.so", tmp_path / "none")
        == "this system does not say what its processor can do"
    )


@pytest.mark.parametrize("built", ["other sources", "cannot be loaded"])
def test_a_library_of_no_use_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, built: str
) -> None:
    """One that older sources made, or that this system does not load, is said before a runner is
    chosen by it."""
    part, info = tmp_path / "lib.so", tmp_path / "cpuinfo"
    part.write_text("not a library")
    info.write_text(f"flags : {' '.join(CPU_FLAGS)}\n")
    monkeypatch.setattr(library, "PATH", part)
    monkeypatch.setattr(library, "_CPU_INFO", info)
    if built == "other sources":
        monkeypatch.setattr(
            library.ctypes, "CDLL", lambda path: SimpleNamespace(pcg_abi=lambda: ABI - 1)
        )
    assert built in str(library.why_not_native())


def test_the_declarations_are_those_of_the_sources() -> None:
    """The version of the interface is the same on both sides."""
    assert re.search(
        r"#define PCG_ABI (\d+)", (SOURCES / "pcg.h").read_text(encoding="utf-8")
    ).group(1) == str(ABI)


@NEEDS_NATIVE
def test_a_closed_team_is_of_no_use() -> None:
    """Closing twice is harmless; what is closed has no handle; no team is empty."""
    team = Team(2)
    team.close()
    team.close()
    with pytest.raises(RuntimeError, match="closed"):
        _ = team.handle
    with pytest.raises(ValueError, match="at least one"):
        Team(0)
