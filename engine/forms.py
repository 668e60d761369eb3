"""Forms of answers, which are compiled before an answer begins. Knows no grammar.

One thread compiles, since a form may take seconds; requests without a form do not wait for it.
Tenants take turns, so a tenant that asks for many forms only delays itself.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from engine.prompt.output_syntax import OutputSyntax
from engine.prompt.types import Tool
from engine.schedule.sequence import Constraint
from engine.types import Sampling

T = TypeVar("T")


class Form(Protocol):
    """The form that an answer must have."""

    @property
    def is_at_hand(self) -> bool:
        """Whether `constraint` answers at once."""
        ...

    def constraint(self) -> Constraint:
        """The constraint that keeps one answer in this form; may take seconds.

        Raises `BadFormat` or `Overloaded`.
        """
        ...


class Forms(Protocol):
    """Derives the form of an answer from its request, at once.

    Raises `BadFormat` for a form that cannot be kept.
    """

    def form(
        self, sampling: Sampling, tools: Sequence[Tool], syntax: OutputSyntax
    ) -> Form | None: ...

    def close(self) -> None:
        """Let go of processes that compiling took."""
        ...


class FairQueue(Generic[T]):
    """Thread-safe; each tenant's items in order, tenants in turn. Whoever puts sees to it that
    there are not too many."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()
        self._closed = False

    def put(self, tenant: str, item: T) -> None:
        with self._changed:
            self._waiting.setdefault(tenant, deque()).append(item)
            self._changed.notify()

    def close(self) -> None:
        """Let `take` return None from now on. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def take(self) -> T | None:
        """The next item of the tenant whose turn it is, waited for; None once the queue is
        closed."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting) or self._closed)
            if self._closed:
                return None
            tenant, items = self._waiting.popitem(last=False)
            item = items.popleft()
            if items:
                self._waiting[tenant] = items
            return item
