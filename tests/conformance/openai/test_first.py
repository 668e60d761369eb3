"""The shortest proof that OpenAI's clients see a cache on the real engine: written, read,
told alike in every form.
"""

from __future__ import annotations

import pytest

from tests.conformance.openai.asking import BREAK, EXPLICIT, Asker, Served, filler, said, text, user

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def test_written_once_and_read_in_every_form(served: Served) -> None:
    """One API writes, both read, whole and streamed, exactly as much; without marks in explicit
    mode nothing is read."""
    chat, responses = Asker(served, "chat", False), Asker(served, "responses", False)
    turn = user(filler())
    cold = chat(turn)
    assert (cold.read, cold.written > 64) == (0, True)
    forms = [Asker(served, "chat", True), responses, Asker(served, "responses", True)]
    assert [(told.read, told.written, told.prompt) for told in (ask(turn) for ask in forms)] == [
        (cold.written, 0, cold.prompt)
    ] * 3
    assert chat(turn, prompt_cache_options=EXPLICIT).read == 0
    more = responses(turn, said("assistant", "Yes."), user(text("And?", BREAK)))
    assert more.read == cold.written
    assert more.written > 0


def test_a_check_that_can_fail(served: Served) -> None:
    """The control: two prompts of the same length that differ in their first words share nothing
    that is billed."""
    chat = Asker(served, "chat", False)
    first, other = chat(user(filler())), chat(user(filler()))
    assert first.written > 64
    assert other.read == 0
