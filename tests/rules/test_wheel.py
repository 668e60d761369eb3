"""What is in the distribution: the three packages with their data files, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "engine" / "native" / "libpcg.so"
PACKAGES = ("engine", "gateway", "policies")
DATA = ("py.typed", "*.jinja", "*.yaml")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel as the build backend makes it from this tree."""
    target = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(target),
        str(ROOT),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return zipfile.ZipFile(next(target.glob("*.whl")))


def expected_files() -> set[str]:
    """Source and data files of the packages, as they lie in the tree."""
    patterns = ("*.py", *DATA)
    found = (
        path
        for package in PACKAGES
        for pattern in patterns
        for path in (ROOT / package).rglob(pattern)
    )
    return {path.relative_to(ROOT).as_posix() for path in found if "__pycache__" not in path.parts}


def test_wheel_contains_exactly_the_packages(wheel: zipfile.ZipFile) -> None:
    """Every source, template, preset and type marker is in the wheel; besides the metadata and the
    library nothing more."""
    names = {name for name in wheel.namelist() if not name.split("/")[0].endswith(".dist-info")}
    assert names - {LIBRARY.relative_to(ROOT).as_posix()} == expected_files()
    assert {f"{package}/py.typed" for package in PACKAGES} <= names


def test_wheel_with_the_native_library_is_of_its_platform(wheel: zipfile.ZipFile) -> None:
    """Where the library was built it is in the wheel, which says so in its tag; else the wheel is
    for any machine."""
    tag = "py3-none-linux_x86_64" if LIBRARY.exists() else "py3-none-any"
    assert Path(str(wheel.filename)).name.endswith(f"-{tag}.whl")
    assert (LIBRARY.relative_to(ROOT).as_posix() in wheel.namelist()) == LIBRARY.exists()


def test_wheel_has_templates_and_presets(wheel: zipfile.ZipFile) -> None:
    """Data without which nothing starts: at least one chat template and the default policy."""
    names = wheel.namelist()
    assert [
        name
        for name in names
        if name.startswith("engine/prompt/templates/") and name.endswith(".jinja")
    ]
    assert [
        name for name in names if name.startswith("policies/presets/") and name.endswith(".yaml")
    ]


def test_wheel_installs_the_command(wheel: zipfile.ZipFile) -> None:
    """The wheel names `pcg` as its command and carries its licence."""
    info = next(name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    assert "pcg = gateway.cli.main:main" in wheel.read(info).decode()
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())
