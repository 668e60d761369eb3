"""Builds the native library into `engine/native` and, as a hook of hatchling, into wheels.

Knows no kernels.

`python hatch_build.py` builds in place. The compiler is `$CC`, else `cc`, else the one of the
package `ziglang`. Without any, on another machine than x86-64 Linux, or where compiling fails,
there is a warning and a wheel without the library.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # building in place needs no hatchling
    BuildHookInterface = object

FOLDER = Path(__file__).parent / "engine" / "native"
LIBRARY = FOLDER / "libpcg.so"
ZIG = "ziglang"
FLAGS = (
    *(
        "-O3",
        "-std=c11",
        "-shared",
        "-fPIC",
        "-pthread",
        "-ffp-contract=off",
        "-fvisibility=hidden",
        "-Wall",
        "-Wextra",
    ),
    *("-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16"),
)


class NativeBuildHook(BuildHookInterface):
    """Makes the library part of a wheel, and the wheel one of its platform."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """What the build needs besides hatchling: a compiler, where it has something to compile and
        the machine has none."""
        return (
            [f"{ZIG}>=0.13"] if is_possible() and not is_fresh() and own_compiler() is None else []
        )

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, and add what was built to a wheel that is not editable."""
        if self.target_name == "wheel" and build() and version != "editable":
            build_data["artifacts"].append(f"/{LIBRARY.relative_to(FOLDER.parents[1])}")
            build_data["pure_python"] = False
            build_data["tag"] = "py3-none-linux_x86_64"


def build() -> bool:
    """Have a library that is as new as its sources; False, and a line on stderr, where that is not
    possible."""
    if not is_possible():
        return _without("it is for x86-64 Linux")
    if is_fresh():
        return True
    command = own_compiler() or zig_compiler()
    if command is None:
        return _without("there is no C compiler; set CC or install one")
    part = LIBRARY.with_suffix(f".{os.getpid()}.part")
    sources = [str(path) for path in sources_of(".c")]
    arguments = [*command, *FLAGS, "-o", str(part), *sources]
    try:
        done = subprocess.run(
            arguments, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        return _without(f"{shlex.join(command)} cannot be run: {error.strerror}")
    if done.returncode != 0:
        part.unlink(missing_ok=True)
        return _without(f"{shlex.join(command)} failed:\n{done.stderr[-4000:]}")
    part.replace(LIBRARY)
    return True


def is_possible() -> bool:
    """Whether this machine can run the library at all."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def is_fresh() -> bool:
    """Whether the library is newer than everything it is made of."""
    if not LIBRARY.exists():
        return False
    made_of = [*sources_of(".c"), *sources_of(".h"), Path(__file__)]
    return all(path.stat().st_mtime <= LIBRARY.stat().st_mtime for path in made_of)


def sources_of(suffix: str) -> list[Path]:
    return sorted((FOLDER / "src").glob(f"*{suffix}"))


def own_compiler() -> list[str] | None:
    """The compiler that `$CC` names, else the system's."""
    named = os.environ.get("CC")
    if named:
        return shlex.split(named)
    return ["cc"] if shutil.which("cc") else None


def zig_compiler() -> list[str] | None:
    """Clang as the package `ziglang` brings it, for any glibc since 2.28."""
    if importlib.util.find_spec(ZIG) is None:
        return None
    return [sys.executable, "-m", ZIG, "cc", "-target", "x86_64-linux-gnu.2.28"]


def _without(reason: str) -> bool:
    print(f"warning: the native library is not built: {reason}", file=sys.stderr)
    return False


if __name__ == "__main__":
    sys.exit(0 if build() else 1)
