"""Requests over which engine workers have died, by their content. Knows no processes.

Nobody can say which of several requests a worker died of. So the only one that was there is not
given to a worker again, and of several each may come once more.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec

from engine.prompt.numerals import in_msgpack
from engine.prompt.types import Prompt
from engine.types import Sampling
from gateway.errors import Poisonous

MOST_DEATHS: Final = 2
"""Workers that may die while a content is there, among others."""

NUM_KEPT: Final = 4096
"""Contents that are remembered, the oldest goes first: 32 bytes and a number each."""

MESSAGE: Final = (
    "the engine ended while it was serving this request, and this request is not "
    "tried again; change it, or tell the operator"
)

_encoder: Final = msgspec.msgpack.Encoder(enc_hook=in_msgpack)


class Poison:
    """Shared by all workers of a model, on the event loop only. Costs nothing while no worker has
    died."""

    def __init__(self) -> None:
        self._deaths: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._deaths)

    def check(self, prompt: Prompt, sampling: Sampling | None) -> None:
        """Raises `Poisonous` for what is not given to a worker any more. `sampling` is None where
        tokens are only counted."""
        if self._deaths and self._deaths.get(_digest(prompt, sampling), 0) >= MOST_DEATHS:
            raise Poisonous(MESSAGE)

    def died(self, present: Sequence[tuple[Prompt, Sampling | None]]) -> None:
        """A worker has died while it was serving these."""
        digests = {_digest(prompt, sampling) for prompt, sampling in present}
        for digest in digests:
            self._deaths[digest] = (
                MOST_DEATHS if len(digests) == 1 else self._deaths.get(digest, 0) + 1
            )
            self._deaths.move_to_end(digest)
        while len(self._deaths) > NUM_KEPT:
            self._deaths.popitem(last=False)


def _digest(prompt: Prompt, sampling: Sampling | None) -> bytes:
    """Of all that a worker is told of a request's content; seeds differ where one request asks for
    several answers."""
    if sampling is not None:
        sampling = msgspec.structs.replace(sampling, seed=None)
    return hashlib.sha256(_encoder.encode((prompt, sampling))).digest()
