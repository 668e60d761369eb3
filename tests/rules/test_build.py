"""The hook that builds the native library: which compiler it takes,
and that nothing fails where there is none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hatch_build
from hatch_build import NativeBuildHook, build, is_fresh

COMPILER = shutil.which("gcc") or shutil.which("cc")


class Hook(NativeBuildHook):
    """The hook as hatchling makes it for a wheel."""

    def __init__(self) -> None:
        pass

    @property
    def target_name(self) -> str:
        return "wheel"


@pytest.fixture(autouse=True)
def nothing_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A checkout in which nothing was built, and a machine of the right kind without a compiler."""
    monkeypatch.setattr(hatch_build, "LIBRARY", tmp_path / "libpcg.so")
    monkeypatch.setattr(hatch_build, "is_possible", lambda: True)
    monkeypatch.setattr(hatch_build, "ZIG", "no_such_package")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)


def fake_compiler(tmp_path: Path, body: str) -> str:
    """A program that is called as a compiler is."""
    path = tmp_path / "fake-cc"
    path.write_text(f"#!{sys.executable}\nimport sys\n{body}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.skipif(
    COMPILER is None or not hatch_build.is_possible(), reason="needs a C compiler for x86-64"
)
def test_the_sources_have_no_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning is an error: of operations in no order, for one, the order that a compiler chooses
    need not be ours."""
    monkeypatch.undo()
    sources = map(str, hatch_build.sources_of(".c"))
    command = [str(COMPILER), *hatch_build.FLAGS, "-fsyntax-only", "-Werror", *sources]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_compiler_is_asked_for_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package with a compiler is a build dependency only without one, and only where there is
    something to build."""
    assert Hook().dependencies() == ["no_such_package>=0.13"]
    monkeypatch.setenv("CC", "gcc")
    assert Hook().dependencies() == []
    monkeypatch.delenv("CC")
    hatch_build.LIBRARY.touch()
    os.utime(hatch_build.LIBRARY, (2**31, 2**31))
    assert Hook().dependencies() == []
    monkeypatch.setattr(hatch_build, "is_possible", lambda: False)
    hatch_build.LIBRARY.unlink()
    assert Hook().dependencies() == []


def test_the_compiler_named_makes_the_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`$CC` with its arguments is called once; what is newer than its sources is not built
    again."""
    body = (
        "open(sys.argv[sys.argv.index('-o') + 1], 'a').write('built'); assert sys.argv[1] == '-v'"
    )
    monkeypatch.setenv("CC", f"{fake_compiler(tmp_path, body)} -v")
    assert not is_fresh()
    assert build()
    assert build()
    assert hatch_build.LIBRARY.read_text() == "built"
    os.utime(hatch_build.LIBRARY, (0, 0))
    assert not is_fresh()


@pytest.mark.parametrize("compiler", ["sys.exit('no AVX here')", None])
def test_without_a_library_the_wheel_is_for_any_machine(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    compiler: str | None,
) -> None:
    """A compiler that fails, and none at all, give a warning that says which, no library, and a
    pure wheel."""
    if compiler is not None:
        monkeypatch.setenv("CC", fake_compiler(tmp_path, compiler))
    data: dict[str, Any] = {"artifacts": []}
    Hook().initialize("standard", data)
    assert data == {"artifacts": []}
    assert ("no AVX here" if compiler else "no C compiler") in capsys.readouterr().err
    assert list(tmp_path.glob("*.so*")) == []


def test_a_compiler_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A `$CC` that is no program, or none that may be run, is a warning as well: nobody's
    installation ends there."""
    for name, words in ((tmp_path / "no-cc", "No such file"), (tmp_path, "Permission denied")):
        monkeypatch.setenv("CC", str(name))
        assert not build()
        assert words in capsys.readouterr().err


def test_another_machine_builds_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the library could not run no compiler is called."""
    monkeypatch.setattr(hatch_build, "is_possible", lambda: False)
    monkeypatch.setenv("CC", "/no/such/compiler")
    assert not build()
    assert "x86-64 Linux" in capsys.readouterr().err


def test_an_editable_install_leaves_the_library_in_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is built, but an editable wheel does not carry it."""
    monkeypatch.setenv(
        "CC", fake_compiler(tmp_path, "open(sys.argv[sys.argv.index('-o') + 1], 'w')")
    )
    data: dict[str, Any] = {"artifacts": []}
    Hook().initialize("editable", data)
    assert data == {"artifacts": []}
    assert hatch_build.LIBRARY.exists()
