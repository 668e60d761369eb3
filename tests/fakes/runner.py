"""A model without a model: every output depends on every KV slot it must read,
so any wrong page shows.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from hashlib import blake2b
from typing import Final

from engine.schedule.sequence import Sampled, Sequence, Slice

SLOT_NBYTES: Final = 8
Script = Callable[[Sequence], Seq[int] | None]
Hook = Callable[[Seq[Slice]], None]


class FakeRunner:
    """Implements `engine.schedule.runner.Runner` deterministically.

    The KV of a token is 8 bytes hashed from the token, its position and the KV of all tokens before
    it, *as read through the block table*. The next token is chosen from `alphabet` by a hash of the
    whole KV, so a stale, foreign, shifted or missing slot changes the answer. A draft's tokens are
    computed along and verified like a real runner's. With `reuse_decode_kv=False` a token computed
    in decode gets other bits than the same token prefilled, as in exact mode with unequal row
    groups.

    A constraint is the alphabet where there is one. `script(sequence)` may give the tokens to emit
    instead (its end is `script_end`); `before_step` is called first in every step, on the engine
    thread: it may block, or raise to make the step fail.
    """

    exact = True

    def __init__(
        self,
        *,
        alphabet: Seq[int] = tuple(b"abcdefghijklmnopqrstuvwxyz "),
        num_pages: int = 64,
        block_size: int = 4,
        reuse_decode_kv: bool = True,
    ) -> None:
        self.alphabet = tuple(alphabet)
        self.num_pages = num_pages
        self.block_size = self.page_size = block_size
        self.page_nbytes = block_size * SLOT_NBYTES
        self.reuse_decode_kv = reuse_decode_kv
        self.name = "fake"
        self.device = "cpu"
        self.fingerprint = f"fake-{block_size}-{reuse_decode_kv}"
        self.script: Script | None = None
        self.script_end: int | None = None
        self.before_step: Hook | None = None
        self.steps: list[tuple[Slice, ...]] = []
        self.is_closed = False
        self._pages = [bytearray(b"\xee" * self.page_nbytes) for _ in range(num_pages)]

    def step(self, slices: Seq[Slice]) -> list[Sampled | None]:
        """See `Runner.step`. Also checks what every runner may rely on: no page is written that
        another slice can see."""
        assert not self.is_closed
        if self.before_step is not None:
            self.before_step(slices)
        self._check_writes(slices)
        self.steps.append(tuple(slices))
        return [self._compute(part) for part in slices]

    def copy_page(self, source: int, target: int, num_tokens: int) -> None:
        """See `Runner.copy_page`. The other slots of the target become garbage."""
        nbytes = num_tokens * SLOT_NBYTES
        self._pages[target][:] = self._pages[source][:nbytes] + b"\xdd" * (
            self.page_nbytes - nbytes
        )

    def read_pages(self, pages: Seq[int]) -> memoryview:
        """See `Runner.read_pages`."""
        return memoryview(b"".join(self._pages[page] for page in pages))

    def write_pages(self, pages: Seq[int], body: memoryview) -> None:
        """See `Runner.write_pages`."""
        assert len(body) == len(pages) * self.page_nbytes
        for i, page in enumerate(pages):
            self._pages[page][:] = body[i * self.page_nbytes : (i + 1) * self.page_nbytes]

    def close(self) -> None:
        """Idempotent."""
        self.is_closed = True

    def _compute(self, part: Slice) -> Sampled | None:
        sequence = part.sequence
        state = blake2b(digest_size=SLOT_NBYTES)
        for i in range(part.start):
            state.update(self._slot(sequence, i))
        token_ids = [*sequence.token_ids[part.start : part.start + part.num_tokens], *part.draft]
        sampled: list[int] = []
        for i, token_id in enumerate(token_ids, part.start):
            fresh = state.copy()
            is_decode = i >= sequence.num_prompt and not self.reuse_decode_kv
            fresh.update(b"%d %d %d" % (i, token_id, is_decode))
            self._slot(sequence, i)[:] = fresh.digest()
            state.update(fresh.digest())
            num_guessed = i - (part.start + part.num_tokens - 1)
            if num_guessed >= 0 and sampled == list(part.draft[:num_guessed]):
                sampled.append(self._sample(sequence, num_guessed, int.from_bytes(state.digest())))
        return Sampled(tuple(sampled)) if part.sample else None

    def _sample(self, sequence: Sequence, num_ahead: int, state: int) -> int:
        if sequence.constraint is not None:
            bits = int.from_bytes(sequence.constraint.allowed(), "little")
            allowed = [token_id for token_id in range(bits.bit_length()) if bits >> token_id & 1]
            return allowed[state % len(allowed)]
        script = self.script(sequence) if self.script is not None else None
        if script is None:
            return self.alphabet[state % len(self.alphabet)]
        if sequence.num_output + num_ahead < len(script):
            return script[sequence.num_output + num_ahead]
        assert self.script_end is not None, "the script is over"
        return self.script_end

    def _slot(self, sequence: Sequence, index: int) -> memoryview:
        page = sequence.block_table[index // self.block_size]
        begin = index % self.block_size * SLOT_NBYTES
        return memoryview(self._pages[page])[begin : begin + SLOT_NBYTES]

    def _check_writes(self, slices: Seq[Slice]) -> None:
        for part in slices:
            first, last = part.start // self.block_size, (part.end - 1) // self.block_size
            written = set(part.sequence.block_table[first : last + 1])
            assert len(written) == last + 1 - first, "a page twice in one block table"
            for other in slices:
                if other is not part:
                    assert written.isdisjoint(other.sequence.block_table), (
                        "a step writes a page that another sequence reads"
                    )
