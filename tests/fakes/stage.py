"""A look into a stage: how much of it is out."""

from __future__ import annotations

from engine.memory import CELL_NBYTES, Stage


def lent_nbytes(stage: Stage) -> int:
    """Bytes whose views have not ended."""
    with stage._lock:
        stage._take_back()
        return stage._cells.count(b"\x00") * CELL_NBYTES
