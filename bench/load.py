"""Puts a server under load: conversations by a number of clients, or each at its own time.

Knows no table.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.chat import ChatClient, Message, Reply
from bench.workloads import Conversation


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """What a load came to. Times in seconds; tokens as the server's usage counts them."""

    num_requests: int
    num_prompt: int
    num_cached: int
    num_output: int
    duration_s: float
    """From the first request to the end of the last answer."""
    ttft_s: float
    ttft_p95_s: float
    decode_s: float

    @property
    def output_rate(self) -> float:
        """Generated tokens per second, of all clients together."""
        return self.num_output / self.duration_s


def figures_of(replies: Sequence[Reply]) -> LoadFigures:
    """Sums, and medians over the requests."""
    times = sorted(reply.ttft_s for reply in replies)
    return LoadFigures(
        num_requests=len(replies),
        num_prompt=sum(reply.num_prompt for reply in replies),
        num_cached=sum(reply.num_cached for reply in replies),
        num_output=sum(reply.num_output for reply in replies),
        duration_s=max(reply.end_s for reply in replies) - min(reply.begin_s for reply in replies),
        ttft_s=statistics.median(times),
        ttft_p95_s=times[min(len(times) - 1, int(0.95 * len(times)))],
        decode_s=statistics.median(reply.decode_s for reply in replies),
    )


async def closed_loop(
    client: ChatClient, conversations: Sequence[Conversation], num_clients: int
) -> list[Reply]:
    """`num_clients` at once, each taking the next conversation when its own is over. Raises
    `ServerRefused`."""
    replies: list[Reply] = []
    waiting = iter(conversations)
    async with asyncio.TaskGroup() as group:
        for _ in range(num_clients):
            group.create_task(_work(client, waiting, replies))
    return replies


async def open_loop(client: ChatClient, conversations: Sequence[Conversation]) -> list[Reply]:
    """Each conversation begins at its time, however many are still under way. Raises
    `ServerRefused`."""
    replies: list[Reply] = []
    async with asyncio.TaskGroup() as group:
        for conversation in conversations:
            group.create_task(_begin(client, conversation, replies))
    return replies


async def _work(client: ChatClient, waiting: Iterator[Conversation], replies: list[Reply]) -> None:
    for conversation in waiting:
        await _converse(client, conversation, replies)


async def _begin(client: ChatClient, conversation: Conversation, replies: list[Reply]) -> None:
    await asyncio.sleep(conversation.begin_s)
    await _converse(client, conversation, replies)


async def _converse(client: ChatClient, conversation: Conversation, replies: list[Reply]) -> None:
    """Ask all questions in turn; each request repeats the conversation up to there."""
    messages = [Message("system", conversation.system)]
    for question in conversation.questions:
        messages.append(Message("user", question))
        reply = await client.ask(messages, conversation.max_tokens)
        messages.append(Message("assistant", reply.text))
        replies.append(reply)
