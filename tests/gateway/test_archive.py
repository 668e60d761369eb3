"""What requests leave for later ones: found by its own tenant, within bytes and time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.state.archive import Archive
from gateway.wire.base import StoredResponse


def kept(name: str, nbytes: int = 10) -> StoredResponse:
    return StoredResponse(name, None, nbytes, body=b"{}")


def test_only_the_tenant_finds_it() -> None:
    """Until it is forgotten; forgetting what is not there is fine."""
    archive = Archive(100, 60.0)
    archive.put("a", kept("r"), 0.0)
    assert archive.find("a", "r", 60.0) == kept("r")
    assert archive.find("b", "r", 0.0) is None
    assert archive.find("a", "r", 60.1) is None
    archive.forget("b", "r")
    archive.forget("a", "r")
    assert archive.find("a", "r", 0.0) is None


def test_the_oldest_make_room() -> None:
    """One tenant's responses push out its own oldest, never another's; what is larger than the room
    is not kept."""
    archive = Archive(25, 60.0)
    archive.put("b", kept("other"), 0.0)
    for name in ("1", "2", "3"):
        archive.put("a", kept(name), 0.0)
    assert [archive.find("a", name, 0.0) is not None for name in ("1", "2", "3")] == [
        False,
        True,
        True,
    ]
    archive.put("a", kept("huge", 26), 0.0)
    assert archive.find("a", "huge", 0.0) is None
    assert archive.find("b", "other", 0.0) is not None


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"), st.sampled_from("123456"), st.integers(1, 60), st.booleans()
        )
    )
)
def test_the_room_is_never_passed(steps: list[tuple[str, str, int, bool]]) -> None:
    """Whatever is put, put again and forgotten, the bytes counted are those of what can be
    found."""
    archive, names = Archive(100, 1e9), "123456"
    for tenant, name, nbytes, forget in steps:
        if forget:
            archive.forget(tenant, name)
        else:
            archive.put(tenant, kept(name, nbytes), 0.0)
        for each in "ab":
            found = [archive.find(each, name, 0.0) for name in names]
            assert (
                archive.nbytes(each) == sum(one.nbytes for one in found if one is not None) <= 100
            )
