"""The manifest of a prepared model folder: finds a truncated or altered file at start.

Knows no tensors.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from engine.errors import ModelDamaged, ModelNotFound

MANIFEST_NAME: Final = "pcg-manifest.json"
MANIFEST_VERSION: Final = 1
WEIGHTS_SUFFIX: Final = ".safetensors"
_CHUNK_NBYTES: Final = 4 * 1024 * 1024
_MAX_HEADER_NBYTES: Final = 100 * 1024 * 1024


class FileRecord(msgspec.Struct, frozen=True):
    """One file. `mtime_ns` only says whether the content must be read again to trust `sha256`."""

    nbytes: int
    sha256: str
    mtime_ns: int


class Manifest(msgspec.Struct, frozen=True):
    """Every file of a prepared folder. `digest` covers names, sizes and hashes: an edited manifest
    does not match it."""

    version: int
    source: str
    files: dict[str, FileRecord]
    digest: str


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A validated model folder: `hashes` is what is known about content without reading it (empty
    without a manifest)."""

    folder: Path
    weights: tuple[str, ...]
    hashes: dict[str, str]


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_NBYTES):
            digest.update(chunk)
    return digest.hexdigest()


def write_manifest(folder: Path, source: str) -> Manifest:
    """Hash every file of `folder` and write the manifest into it."""
    files: dict[str, FileRecord] = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name != MANIFEST_NAME:
            stat = path.stat()
            files[path.name] = FileRecord(stat.st_size, sha256_file(path), stat.st_mtime_ns)
    manifest = Manifest(MANIFEST_VERSION, source, files, _digest(source, files))
    (folder / MANIFEST_NAME).write_bytes(
        msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    )
    return manifest


def read_manifest(folder: Path) -> Manifest | None:
    """The folder's manifest, or None when there is none. Raises `ModelDamaged` when it cannot be
    trusted."""
    path = folder / MANIFEST_NAME
    if not path.is_file():
        return None
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except msgspec.DecodeError as error:
        raise ModelDamaged(f"{path}: not a manifest ({error}); {_remedy(folder)}") from error
    if manifest.version != MANIFEST_VERSION or manifest.digest != _digest(
        manifest.source, manifest.files
    ):
        raise ModelDamaged(
            f"{path}: the manifest was altered or is of another version; {_remedy(folder)}"
        )
    return manifest


def check_folder(folder: Path) -> ModelFiles:
    """Validate a model folder without loading it.

    With a manifest every file must be there with its size, and with its hash where it was touched
    since. Without one, `config.json`, `tokenizer.json` and complete safetensors files must be
    there. Raises `ModelNotFound` or `ModelDamaged`.
    """
    if not folder.is_dir():
        raise ModelNotFound(f"{folder}: no such model folder")
    manifest = read_manifest(folder)
    if manifest is not None:
        _check_files(folder, manifest)
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise ModelNotFound(
                f"{folder}: no {name}; a model folder holds config.json, tokenizer.json and "
                f"*{WEIGHTS_SUFFIX}"
            )
    weights = _weight_names(folder)
    for name in weights:
        _check_safetensors(folder / name)
    hashes = (
        {} if manifest is None else {name: record.sha256 for name, record in manifest.files.items()}
    )
    return ModelFiles(folder, weights, hashes)


def content_digest(files: ModelFiles) -> str:
    """SHA-256 over names and contents of `config.json` and all weights; reads what no manifest
    vouches for."""
    digest = hashlib.sha256()
    for name in ("config.json", *files.weights):
        known = files.hashes.get(name)
        digest.update(f"{name}\0{known or sha256_file(files.folder / name)}\0".encode())
    return digest.hexdigest()


def _check_files(folder: Path, manifest: Manifest) -> None:
    for name, record in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise ModelDamaged(f"{path}: missing; {_remedy(folder)}")
        stat = path.stat()
        if stat.st_size != record.nbytes:
            raise ModelDamaged(
                f"{path}: {stat.st_size} bytes, expected {record.nbytes}; {_remedy(folder)}"
            )
        if stat.st_mtime_ns != record.mtime_ns and sha256_file(path) != record.sha256:
            raise ModelDamaged(f"{path}: content differs from the manifest; {_remedy(folder)}")


def _weight_names(folder: Path) -> tuple[str, ...]:
    """Safetensors files to load, in name order: those of the index when there is one, else all."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names: Iterable[str] = json.loads(index.read_bytes())["weight_map"].values()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelDamaged(f"{index}: not a weight index") from error
        wanted = tuple(sorted(set(names)))
        if missing := [name for name in wanted if not (folder / name).is_file()]:
            raise ModelDamaged(
                f"{folder}: {len(missing)} of {len(wanted)} weight files missing, first "
                f"{missing[0]}"
            )
        return wanted
    found = tuple(sorted(path.name for path in folder.glob(f"*{WEIGHTS_SUFFIX}")))
    if not found:
        raise ModelNotFound(f"{folder}: no *{WEIGHTS_SUFFIX} weights")
    return found


def _check_safetensors(path: Path) -> None:
    """A safetensors file says in its header how long it is (format: 8-byte length, JSON header,
    data)."""
    nbytes = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        header_nbytes = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= header_nbytes <= min(_MAX_HEADER_NBYTES, nbytes - 8):
            raise ModelDamaged(f"{path}: truncated or not a safetensors file")
        try:
            header = json.loads(file.read(header_nbytes))
            end = max(
                (
                    entry["data_offsets"][1]
                    for name, entry in header.items()
                    if name != "__metadata__"
                ),
                default=0,
            )
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise ModelDamaged(f"{path}: unreadable safetensors header") from error
    if nbytes != 8 + header_nbytes + end:
        raise ModelDamaged(
            f"{path}: {nbytes} bytes, its header promises {8 + header_nbytes + end}: truncated?"
        )


def _digest(source: str, files: dict[str, FileRecord]) -> str:
    lines = [f"{MANIFEST_VERSION}\0{source}"]
    lines += [f"{name}\0{record.nbytes}\0{record.sha256}" for name, record in sorted(files.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _remedy(folder: Path) -> str:
    return f"remove {folder} and fetch the model again"
