"""Who computes what others wait for, as pure logic. No engine, no cache."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cache.tree.block import pack
from engine.schedule.flights import Beginning, Flights

SIZE = 4


def beginning(*token_ids: int, tenant: str = "t") -> Beginning:
    return Beginning.of(tenant, pack(token_ids), SIZE)


def shared(flights: Flights, wanted: Beginning, *, known: int = 0, limit: int = 1000) -> int:
    """The tokens of a prompt that some flight will have computed; 0 for none."""
    found = flights.find(wanted, known, limit)
    return 0 if found is None else found[1]


def test_a_flight_is_found_by_how_it_begins() -> None:
    """To the token where prompts part, if at least a block is shared; never by another tenant."""
    flights = Flights(SIZE)
    flights.lead("a", beginning(*range(20)), 0, 20)
    assert shared(flights, beginning(*range(20))) == 20
    assert shared(flights, beginning(*range(20)), limit=19) == 19
    assert shared(flights, beginning(*range(10), 99, 98, 97)) == 10
    assert shared(flights, beginning(*range(4), 99)) == 4
    assert shared(flights, beginning(*range(3), 99, 98)) == 0
    assert shared(flights, beginning(*range(20), tenant="u")) == 0


def test_only_what_is_still_to_be_computed_is_worth_waiting_for() -> None:
    """Not what the cache has already, and not what the flight has computed and the cache lost
    again."""
    flights = Flights(SIZE)
    flights.lead("a", beginning(*range(20)), 8, 20)
    assert shared(flights, beginning(*range(20)), known=8) == 20
    assert shared(flights, beginning(*range(20)), known=17) == 0
    flights.computed("a", 18)
    assert shared(flights, beginning(*range(20)), known=8) == 0


def test_what_a_flight_does_not_keep_is_not_waited_for() -> None:
    """Only its first `num_tokens` tokens will be found by others."""
    flights = Flights(SIZE)
    flights.lead("a", beginning(*range(20)), 0, 9)
    assert shared(flights, beginning(*range(20))) == 9


def test_followers_go_on_when_their_tokens_are_there() -> None:
    """Each as soon as its own part is computed, in the order they came; the rest when the flight
    ends."""
    flights = Flights(SIZE)
    flights.lead("a", beginning(*range(20)), 0, 20)
    for name, num_tokens in (("b", 20), ("c", 8), ("d", 8), ("e", 12)):
        found = flights.find(beginning(*range(20)), 0, num_tokens)
        assert found is not None
        flights.follow(name, *found, until_s=10.0)
        flights.check()
    assert flights.computed("a", 7) == ()
    assert flights.computed("a", 8) == ["c", "d"]
    flights.leave("e")
    assert flights.num_following == 1
    assert flights.land("a") == ["b"]
    assert flights.num_following == 0
    flights.check()
    assert shared(flights, beginning(*range(20))) == 0


def test_nobody_waits_past_the_deadline() -> None:
    """Each has its own."""
    flights = Flights(SIZE)
    flights.lead("a", beginning(*range(20)), 0, 20)
    for name, until_s in (("b", 10.0), ("c", 5.0)):
        found = flights.find(beginning(*range(20)), 0, 20)
        assert found is not None
        flights.follow(name, *found, until_s=until_s)
    assert flights.late(4.9) == []
    assert flights.late(5.0) == ["c"]
    assert flights.late(9.0) == []
    assert flights.late(99.0) == ["b"]
    flights.check()


@settings(max_examples=60)
@given(st.data())
def test_random_traffic_leaves_nobody_waiting(data: st.DataObject) -> None:
    """Requests that lead where nobody computes the same: when all flights have landed nobody
    follows."""
    flights = Flights(SIZE)
    prompts: dict[str, Beginning] = {}
    leading: list[str] = []

    def begin(name: str) -> None:
        found = flights.find(prompts[name], 0, 1000)
        if found is None:
            flights.lead(name, prompts[name], 0, len(prompts[name].ids) // 4)
            leading.append(name)
        else:
            assert found[0].request_id in leading
            flights.follow(name, *found, until_s=1e9)

    for i in range(data.draw(st.integers(1, 12))):
        prompts[str(i)] = beginning(
            *data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=16))
        )
        begin(str(i))
        if leading and data.draw(st.booleans()):
            name = data.draw(st.sampled_from(leading))
            for released in flights.computed(name, data.draw(st.integers(0, 16))):
                begin(released)
        flights.check()
    while leading:
        for released in flights.land(leading.pop(0)):
            begin(released)
        flights.check()
    assert flights.num_following == 0
