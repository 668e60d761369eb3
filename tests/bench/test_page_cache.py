"""Dropping a folder from the page cache, which a cold read is measured by."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.page_cache import drop_page_cache, resident_nbytes
from engine.store.base import Item
from engine.store.disk.store import DiskStore

T0 = 1_700_000_000.0
MIB = 1 << 20
A = b"a" * 32


def test_page_cache_can_be_dropped(tmp_path: Path) -> None:
    """For measurements: after dropping, the folder is not in memory; after a read it is."""
    with DiskStore(tmp_path, nbytes=64 * MIB) as store:
        store.put_many([Item(A, bytes(MIB), T0 + 60)])
        assert resident_nbytes(tmp_path) >= MIB
        drop_page_cache(tmp_path)
        if resident_nbytes(tmp_path) > MIB:
            pytest.skip("this file system lives in memory")
        assert resident_nbytes(tmp_path) == 0
        store.get_many([A], T0)
        assert resident_nbytes(tmp_path) >= MIB
