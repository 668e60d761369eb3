"""The page cache, as measurements of tiers find it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.page_cache import drop_page_cache, resident_nbytes

MIB = 1024**2


def test_page_cache_can_be_dropped(tmp_path: Path) -> None:
    """After dropping, the folder is not in memory; after a read it is."""
    path = tmp_path / "object"
    path.write_bytes(bytes(MIB))
    assert resident_nbytes(tmp_path) >= MIB
    drop_page_cache(tmp_path)
    if resident_nbytes(tmp_path) > MIB // 2:
        pytest.skip("this file system lives in memory")
    assert resident_nbytes(tmp_path) == 0
    path.read_bytes()
    assert resident_nbytes(tmp_path) >= MIB
