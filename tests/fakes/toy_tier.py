"""A kind of tier that the product does not know: files under another name.

Run as a program, it is an engine worker that can open it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from engine.store.disk.reader import FolderObjects
from engine.store.disk.store import DiskStore
from engine.store.kind import Opening, TierKind, TierSpec
from engine.store.kinds import TIER_KINDS
from engine.worker import main


class ToySpec(TierSpec, msgspec.Struct, frozen=True, tag="toy"):
    """A folder of `nbytes`."""

    folder: str
    nbytes: int

    @property
    def where(self) -> str:
        return self.folder


class ToyStore(DiskStore):
    """Files, as on the SSD."""


def _open(spec: ToySpec, opening: Opening) -> ToyStore:
    return ToyStore(Path(spec.folder), nbytes=spec.nbytes, waits=opening.waits)


TOY = TierKind("toy", ToySpec, _open, lambda spec: FolderObjects("toy", Path(spec.folder)))


if __name__ == "__main__":
    TIER_KINDS["toy"] = TOY  # type: ignore[index]
    sys.exit(main(sys.argv[1:]))
