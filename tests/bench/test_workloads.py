"""The conversations of a load: what they share, how long they are, when they begin."""

from __future__ import annotations

import statistics
from collections import Counter

import pytest
from tokenizers import Tokenizer

from bench.compare import SHAPES, shaped
from bench.workloads import (
    WORDS,
    Writer,
    generated_shared_prefix,
    multi_turn,
    no_reuse,
    poisson,
    prefix_repetition,
)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_seed_says_everything(shape: str) -> None:
    """The same seed gives the same conversations; another one shares no system text with them."""
    first = shaped(shape, "a")
    assert first == shaped(shape, "a")
    assert {each.system for each in first} & {each.system for each in shaped(shape, "b")} == set()


def test_prefixes_repeat_evenly() -> None:
    """Twelve requests over four prefixes: three each, no question twice, not in the order of the
    prefixes."""
    made = prefix_repetition(
        1, num_prefixes=4, num_requests=12, prefix_tokens=50, suffix_tokens=30, output_tokens=8
    )
    systems = [each.system for each in made]
    assert list(Counter(systems).values()) == [3] * 4
    assert len({each.questions for each in made}) == 12
    assert systems != sorted(systems, key=systems.index)
    assert {each.max_tokens for each in made} == {8}


def test_groups_share_their_system_text() -> None:
    """Two groups of three questions, one group after the other."""
    made = generated_shared_prefix(
        1, num_groups=2, prompts_per_group=3, system_tokens=40, question_tokens=30, output_tokens=8
    )
    assert [made[0].system] * 3 + [made[3].system] * 3 == [each.system for each in made]
    assert made[0].system != made[3].system


def test_turns_follow_behind_one_system_text() -> None:
    """Every conversation has its own questions; all have the same system text."""
    made = multi_turn(
        1, num_conversations=3, num_turns=4, system_tokens=40, question_tokens=30, output_tokens=8
    )
    assert {len(each.questions) for each in made} == {4}
    assert len({each.system for each in made}) == 1
    assert len({question for each in made for question in each.questions}) == 12


def test_without_reuse_no_beginning_is_shared() -> None:
    """No two of the texts begin with the same words."""
    made = no_reuse(1, num_requests=20, prompt_tokens=40, output_tokens=8)
    assert len({tuple(each.system.split()[:4]) for each in made}) == 20


def test_arrivals_are_random_at_the_rate() -> None:
    """Gaps have the mean and, as those of a Poisson process, the deviation 1/rate; the same seed
    gives the same times."""
    many = no_reuse(1, num_requests=2000, prompt_tokens=1, output_tokens=1)
    begins = [each.begin_s for each in poisson(many, 4.0, 1)]
    gaps = [late - early for early, late in zip([0.0, *begins], begins, strict=False)]
    assert statistics.mean(gaps) == pytest.approx(0.25, rel=0.1)
    assert statistics.stdev(gaps) == pytest.approx(0.25, rel=0.1)
    assert begins == [each.begin_s for each in poisson(many, 4.0, 1)]
    assert begins != [each.begin_s for each in poisson(many, 4.0, 2)]


@pytest.mark.engine
def test_words_are_tokens(default_model: object) -> None:
    """In the default model's vocabulary a text of n words has n tokens, and a question about as
    many as asked for."""
    tokenizer = Tokenizer.from_file(f"{default_model}/tokenizer.json")
    assert len(tokenizer.encode(" " + " ".join(WORDS)).ids) == len(WORDS)
    assert len(tokenizer.encode(Writer(1).question(100)).ids) == pytest.approx(100, abs=8)
