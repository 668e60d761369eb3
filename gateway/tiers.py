"""What each model's engine gets of the SSD: a folder and a share of the cap. Reads sizes of files, opens none.

Every engine is a process of its own and counts its own bytes, so no two of them share a folder. What else lies below
`tiers.ssd.path`, such as folders of models that are no longer served, counts against the cap.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from policies.schema import Policy

_SECTOR_NBYTES: Final = 512
"""The unit of `st_blocks`."""


@dataclass(frozen=True, slots=True)
class SsdShare:
    """One engine's part of the SSD tier."""

    folder: Path
    nbytes: int


def ssd_share(policy: Policy, model: str) -> SsdShare | None:
    """The part of the engine that serves `model`; None where the policy has no SSD tier, or others have filled it."""
    nbytes = policy.tiers.ssd.bytes - sum(map(occupied_nbytes, leftovers(policy)))
    share = nbytes // len(policy.models)
    return SsdShare(ssd_root(policy) / folder_name(model), share) if share > 0 else None


def ssd_root(policy: Policy) -> Path:
    """The folder that holds all models' folders."""
    return Path(policy.tiers.ssd.path).expanduser().absolute()


def ssd_folders(policy: Policy) -> dict[str, Path]:
    """The folder of each model of the policy, whether it exists or not."""
    return {model.name: ssd_root(policy) / folder_name(model.name) for model in policy.models}


def folder_name(model: str) -> str:
    """A file name that no other model has: `org/name` -> `org%2Fname`."""
    name = quote(model, safe="")
    return f"%2E{name[1:]}" if name.startswith(".") else name


def leftovers(policy: Policy) -> list[Path]:
    """What lies in the root folder and belongs to no model of the policy, by name."""
    ours = set(ssd_folders(policy).values())
    return [path for path in _listed(ssd_root(policy)) if path not in ours]


def occupied_nbytes(path: Path) -> int:
    """What a file, or a folder with everything in it, takes on the disk, as `du` counts. What can't be read counts 0."""
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
