"""One kind of tier as a value: how it is configured, opened, and read while an engine has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from msgspec.structs import StructConfig

from engine.memory import Lend
from engine.store.base import BlockStore
from engine.store.reader import TierObjects


class TierSpec:
    """The configuration of one tier. Every kind has its own frozen Struct with this base, tagged
    with the kind's name."""

    __slots__ = ()

    __struct_config__: ClassVar[StructConfig]

    @property
    def kind(self) -> str:
        """The name of its kind, which is that of the tier in reports."""
        return str(self.__struct_config__.tag)

    @property
    def where(self) -> str | None:
        """The place of the objects as operators know it, without secrets; None where they end with
        the process."""
        return None


@dataclass(frozen=True, slots=True)
class Opening:
    """The circumstances in which a store is made.

    Objects that are read lie in memory of `lend`. With `waits` a medium in use is no error. While a
    store looks through its objects it calls `progress` with (objects looked at, objects there are).
    """

    lend: Lend
    waits: bool
    progress: Callable[[int, int], None]


S = TypeVar("S", bound=TierSpec)


@dataclass(frozen=True, slots=True)
class TierKind(Generic[S]):
    """A kind of tier. `open` makes the store, which is entered later, and raises
    `StoreUnsupported`.

    `reader` lists and reads the objects beside an engine that uses them; without one they are read
    through a store, which every process may then open.
    """

    name: str
    spec: type[S]
    open: Callable[[S, Opening], BlockStore]
    reader: Callable[[S], TierObjects] | None = None


TierKinds: TypeAlias = Mapping[str, TierKind[Any]]
"""The kinds of tier that a process can open, by name."""
