"""Conversations to load a server with, and when each begins.

Pure data from a seed; knows no server and no tokenizer.

The shapes are those of the known load generators: `prefix_repetition` (vLLM's `vllm bench serve`)
and `generated_shared_prefix` (SGLang's `bench_serving`); their parameters have the same names but
for ours in tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

_WORDS: Final = """
time year people way day man thing woman life child world school state family student group
country problem hand part place case week company system program question work government number
night point home water room mother area money story fact month lot right study book eye job word
business issue side kind head house service friend father power hour game line end member law car
city community name president team minute idea body information back parent face others level
office door health person art war history party result change morning reason research girl guy
moment air teacher force education
"""
WORDS: Final = tuple(_WORDS.split())
"""Each is one token behind a space in the vocabularies of GPT, Llama and SmolLM; a server's usage
says what they were."""
TASK: Final = "Tell me a long story about the {subject} with as many details as you can."
NUM_TASK_TOKENS: Final = 20
"""About as many tokens as `TASK` and the marks around it have."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A system text and the questions asked behind it, one after the other; it begins `begin_s`
    after the load does.

    Each question is asked when the answer before it is complete. Every answer has up to
    `max_tokens` tokens.
    """

    system: str
    questions: tuple[str, ...]
    max_tokens: int
    begin_s: float = 0.0


class Writer:
    """Writes texts of a number of words that nobody has seen, unless with the same seed."""

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(str(seed))

    def text(self, num_tokens: int) -> str:
        """Random words, about a token each."""
        return " ".join(self._random.choices(WORDS, k=max(1, num_tokens)))

    def question(self, num_tokens: int = NUM_TASK_TOKENS) -> str:
        """A task that asks for a long answer, behind as much text as makes up `num_tokens`."""
        task = TASK.format(subject=" and the ".join(self._random.sample(WORDS, 3)))
        return (
            f"{self.text(num_tokens - NUM_TASK_TOKENS)}. {task}"
            if num_tokens > NUM_TASK_TOKENS
            else task
        )


def prefix_repetition(
    seed: int | str,
    *,
    num_prefixes: int,
    num_requests: int,
    prefix_tokens: int,
    suffix_tokens: int,
    output_tokens: int,
) -> list[Conversation]:
    """`num_requests` single questions spread evenly over `num_prefixes` texts, in random order."""
    writer = Writer(seed)
    prefixes = [writer.text(prefix_tokens) for _ in range(num_prefixes)]
    made = [
        Conversation(prefixes[i % num_prefixes], (writer.question(suffix_tokens),), output_tokens)
        for i in range(num_requests)
    ]
    random.Random(f"{seed}, order").shuffle(made)
    return made


def generated_shared_prefix(
    seed: int | str,
    *,
    num_groups: int,
    prompts_per_group: int,
    system_tokens: int,
    question_tokens: int,
    output_tokens: int,
) -> list[Conversation]:
    """Groups of `prompts_per_group` questions behind one system text each, in the order of the
    groups."""
    writer = Writer(seed)
    made = []
    for _ in range(num_groups):
        system = writer.text(system_tokens)
        made += [
            Conversation(system, (writer.question(question_tokens),), output_tokens)
            for _ in range(prompts_per_group)
        ]
    return made


def multi_turn(
    seed: int | str,
    *,
    num_conversations: int,
    num_turns: int,
    system_tokens: int,
    question_tokens: int,
    output_tokens: int,
) -> list[Conversation]:
    """Conversations of several turns, all behind one system text; each turn repeats everything said
    before."""
    writer = Writer(seed)
    system = writer.text(system_tokens)
    return [
        Conversation(
            system, tuple(writer.question(question_tokens) for _ in range(num_turns)), output_tokens
        )
        for _ in range(num_conversations)
    ]


def no_reuse(
    seed: int | str, *, num_requests: int, prompt_tokens: int, output_tokens: int
) -> list[Conversation]:
    """Single questions with nothing in common: not one token can be reused."""
    writer = Writer(seed)
    return [
        Conversation(writer.text(prompt_tokens), (writer.question(),), output_tokens)
        for _ in range(num_requests)
    ]


def poisson(
    conversations: Sequence[Conversation], rate: float, seed: int | str
) -> list[Conversation]:
    """The same, `rate` of them beginning per second on average, at random and independently of each
    other."""
    draw = random.Random(f"{seed}, arrivals")
    begin_s, made = 0.0, []
    for conversation in conversations:
        begin_s += draw.expovariate(rate)
        made.append(replace(conversation, begin_s=begin_s))
    return made
