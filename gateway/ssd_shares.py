"""The part of the SSD that each engine worker gets: a folder and a share of the cap.

Reads sizes of files, opens none.

Every worker is a process of its own and counts its own bytes, so no two of them share a folder.
Everything else below `tiers.ssd.path`, such as folders of models and workers that are no longer
there, counts against the cap.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from policies.schema import Policy
from policies.sections import ModelPolicy

_SECTOR_NBYTES: Final = 512
"""The unit of `st_blocks`."""


@dataclass(frozen=True, slots=True)
class SsdShare:
    """One worker's part of the SSD tier."""

    folder: Path
    nbytes: int


def ssd_shares(policy: Policy, model: ModelPolicy) -> list[SsdShare] | None:
    """The part of each worker that serves `model`; None where the policy has no SSD tier, or others
    have filled it."""
    nbytes = policy.tiers.ssd.bytes - sum(map(occupied_nbytes, leftovers(policy)))
    share = nbytes // len(policy.models) // model.engine.workers
    return [SsdShare(folder, share) for folder in ssd_folders(policy, model)] if share > 0 else None


def ssd_root(policy: Policy) -> Path:
    """The folder that holds all models' folders."""
    return Path(policy.tiers.ssd.path).expanduser().absolute()


def ssd_folders(policy: Policy, model: ModelPolicy) -> list[Path]:
    """The folder of each worker of a model, whether it exists or not. The first is the model's,
    however many there are."""
    return [
        ssd_root(policy) / folder_name(model.name, worker) for worker in range(model.engine.workers)
    ]


def folder_name(model: str, worker: int = 0) -> str:
    """A file name that no other model or worker has: `org/name` -> `org%2Fname`, `org%2Fname#1`."""
    name = quote(model, safe="")
    name = f"%2E{name[1:]}" if name.startswith(".") else name
    return f"{name}#{worker}" if worker else name


def leftovers(policy: Policy) -> list[Path]:
    """The files and folders in the root folder that belong to no worker of the policy, by name."""
    ours = {folder for model in policy.models for folder in ssd_folders(policy, model)}
    return [path for path in _listed(ssd_root(policy)) if path not in ours]


def occupied_nbytes(path: Path) -> int:
    """Bytes on the disk of a file, or of a folder with everything in it, as `du` counts. Anything
    unreadable counts 0."""
    try:
        nbytes = path.lstat().st_blocks * _SECTOR_NBYTES
    except OSError:
        return 0
    is_folder = path.is_dir() and not path.is_symlink()
    return nbytes + (sum(map(occupied_nbytes, _listed(path))) if is_folder else 0)


def _listed(folder: Path) -> Iterable[Path]:
    try:
        return [folder / name for name in sorted(os.listdir(folder))]
    except OSError:
        return []
