"""`pcg cache`: list stored objects, verify them, pin entries and forget them.

Asks a running gateway, or reads the tiers itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Protocol

import msgspec
from cyclopts import App, Parameter
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from engine.config import EngineConfig
from engine.store.errors import StoreBusy
from gateway.cli.admin_client import Remote, is_gateway
from gateway.config import ConfigError, engine_configs, read_policy, read_settings, root_secret
from gateway.operate.cache_admin import EngineNumbers, Entries, Stat, operator_key
from gateway.operate.cache_pins import SHOWN_DIGITS, PinDone
from gateway.operate.inventory import Contents, Damage, EntryLine, Inventory, Verified, tenant_hash
from gateway.operate.inventory import Progress as Reached
from gateway.operate.tier_maintenance import forget, open_inventory
from gateway.tier_specs import TIER_SECTIONS
from policies.schema import Policy
from policies.sections import ModelPolicy
from policies.size import Size
from policies.ttl import format_duration

cache_app = App(name="cache", help="What the gateway has stored: on the SSD and in Redis.")

_out = Console(soft_wrap=True)
_err = Console(stderr=True, soft_wrap=True)

MAX_DAMAGED_SHOWN: Final = 50

PolicyOption = Annotated[
    Path | None,
    Parameter(name=["--policy", "-p"], help="Policy file. Default: $PCG_POLICY, else none."),
]
UrlOption = Annotated[
    str | None,
    Parameter(
        help="A running gateway to ask. Default: the policy's address if one answers there, else "
        "the files themselves."
    ),
]
KeyOption = Annotated[
    str | None,
    Parameter(
        help="A tenant's API key, to see that tenant alone. Default: the operator's, from the "
        "secret file."
    ),
]
EntryArgument = Annotated[
    str, Parameter(help="The key that `pcg cache ls` shows, or its first digits.")
]


class Source(Protocol):
    """The origin of the answers: a running gateway, or the tiers themselves."""

    def stat(self) -> Stat: ...

    def entries(self) -> Entries: ...

    def flush(self, tenant: str | None) -> int: ...

    def pin(self, key: str, *, pinned: bool) -> PinDone: ...

    def verify(self, progress: Reached) -> Verified: ...


@dataclass(frozen=True, slots=True)
class Local:
    """The tiers themselves, while no gateway needs to be asked."""

    inventory: Inventory
    engines: tuple[EngineConfig, ...]

    def stat(self) -> Stat:
        return Stat({}, self.inventory.contents())

    def entries(self) -> Entries:
        return Entries(list(self.inventory.entries(time.time())), truncated=False)

    def flush(self, tenant: str | None) -> int:
        """Raises `ConfigError` when a gateway has a folder open: its engine must forget, too."""
        try:
            return forget(self.engines, tenant)
        except StoreBusy as error:
            raise ConfigError(
                f"{error}; if it runs at another address, name it with --url"
            ) from None

    def pin(self, key: str, *, pinned: bool) -> PinDone:
        """Raises `ConfigError`: only an engine that runs can pin."""
        verb = "pin" if pinned else "unpin"
        raise ConfigError(
            f"no gateway answers at the policy's address to {verb} {key}: start it, or name it "
            "with --url"
        )

    def verify(self, progress: Reached) -> Verified:
        return self.inventory.verify(progress)


@cache_app.command
def stat(*, policy: PolicyOption = None, url: UrlOption = None, key: KeyOption = None) -> None:
    """Sizes, caps and health of every tier."""
    with _source(policy, url, key) as (source, effective):
        shown = source.stat()
    _out.print(_contents_table(shown.contents, effective, _names(effective)))
    for model, numbers in shown.engines.items():
        _out.print(_engine_table(model, numbers))


@cache_app.command
def ls(*, policy: PolicyOption = None, url: UrlOption = None, key: KeyOption = None) -> None:
    """The entries stored: place, tokens covered, time left, key. Never text."""
    with _source(policy, url, key) as (source, effective):
        listed = source.entries()
    _out.print(_entries_table(listed.entries, _names(effective)))
    if listed.truncated:
        _out.print("there are more")


@cache_app.command
def flush(
    *,
    tenant: Annotated[str | None, Parameter(help="Forget this tenant's cache only.")] = None,
    policy: PolicyOption = None,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Forget what is cached, in every tier."""
    with _source(policy, url, key) as (source, _):
        num_forgotten = source.flush(tenant)
    unit = "blocks" if isinstance(source, Remote) else "objects"
    _out.print(
        f"forgot {num_forgotten} {unit}{f' of {tenant}' if tenant else ''}",
        markup=False,
        highlight=False,
    )


@cache_app.command(name="pin")
def pin_entry(
    entry: EntryArgument,
    /,
    *,
    policy: PolicyOption = None,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Keep an entry until it is unpinned: it does not expire, and is given up last."""
    _pin(entry, policy, url, key, pinned=True)


@cache_app.command
def unpin(
    entry: EntryArgument,
    /,
    *,
    policy: PolicyOption = None,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Let a pinned entry expire again, its own time from now."""
    _pin(entry, policy, url, key, pinned=False)


def _pin(
    entry: str, policy: Path | None, url: str | None, key: str | None, *, pinned: bool
) -> None:
    with _source(policy, url, key) as (source, _):
        done = source.pin(entry, pinned=pinned)
    change = f"{'pinned' if pinned else 'unpinned'} {done.key[:SHOWN_DIGITS]}"
    taken = f"pinned entries take {_size(done.used_nbytes)} of {_size(done.budget_nbytes)}"
    _out.print(f"{change}; {taken}", markup=False, highlight=False)


@cache_app.command
def verify(*, policy: PolicyOption = None, url: UrlOption = None, key: KeyOption = None) -> int:
    """Read everything stored and check every checksum. Exit status 1 when something is damaged.

    A gateway finds damage by itself when it reads an object, treats it as a miss and deletes it:
    this tells earlier.
    """
    with _source(policy, url, key) as (source, _), _bar() as progress:
        found = source.verify(progress)
    shown = found.damaged[:MAX_DAMAGED_SHOWN]
    if shown:
        _out.print(_damage_table(shown))
    more = len(found.damaged) - len(shown)
    summary = (
        f"{found.num_whole} objects whole ({_size(found.nbytes)}), {len(found.damaged)} damaged"
    )
    _out.print(
        summary + (f", of which {more} are not shown" if more else ""),
        markup=False,
        highlight=False,
    )
    return 1 if found.damaged else 0


# Sources ------------------------------------------------------------------------------------------


@contextmanager
def _source(
    policy_file: Path | None, url: str | None, key: str | None
) -> Iterator[tuple[Source, Policy]]:
    """The source to ask, and the policy. Raises `ConfigError`, `PolicyError`."""
    settings = read_settings(policy=policy_file)
    policy = read_policy(settings)
    secret = root_secret(settings)
    host = f"[{policy.server.host}]" if ":" in policy.server.host else policy.server.host
    url = url or (default if is_gateway(default := f"http://{host}:{policy.server.port}") else None)
    if url is not None:
        yield Remote(url, key or operator_key(secret)), policy
        return
    engines = _engines(policy, secret)
    with open_inventory(engines) as inventory:
        yield Local(inventory, engines), policy


def _engines(policy: Policy, secret: bytes) -> tuple[EngineConfig, ...]:
    """The engines of the policy's models, and one for each place whose engine is not in the policy,
    as when the tier was switched off."""
    models = policy.models or (ModelPolicy(),)
    served = policy.model_copy(update={"models": models})
    configs = tuple(
        config for model in models for config in engine_configs(served, model, Path(), secret)
    )
    used = {spec for config in configs for spec in config.tiers}
    others = tuple(
        msgspec.structs.replace(configs[0], tiers=(spec,))
        for section in TIER_SECTIONS.values()
        for spec in section.unused(policy, used)
    )
    return (*configs, *others) if policy.models else others


def _names(policy: Policy) -> Mapping[str, str]:
    """Hashes of the tenants the policy knows -> their names."""
    secret = root_secret(read_settings())
    names = [tenant.name for tenant in policy.tenants] or ["default"]
    return {tenant_hash(secret, name): name for name in names}


# Showing ------------------------------------------------------------------------------------------


def _contents_table(
    contents: Iterable[Contents], policy: Policy, names: Mapping[str, str]
) -> Table:
    cap = Size(policy.tiers.ssd.bytes)
    table = _table(
        "stored",
        f"SSD: at most {cap} in all, leaving {Size(policy.tiers.ssd.min_free)} of the disk free",
    )
    for column in ("tier", "where", "objects", "bytes", "health", "tenants"):
        table.add_column(
            column, justify="right" if column in ("objects", "bytes") else "left", overflow="fold"
        )
    for place in contents:
        tenants = ", ".join(
            f"{names.get(tenant, tenant)} {_size(nbytes)}"
            for tenant, nbytes in place.tenants.items()
        )
        counts = (str(place.num_objects), _size(place.nbytes), escape(_health(place, policy)))
        table.add_row(place.tier, escape(place.where), *counts, escape(tenants))
    return table


def _health(place: Contents, policy: Policy) -> str:
    if place.problem is not None:
        return place.problem
    is_full = place.free_nbytes is not None and place.free_nbytes < policy.tiers.ssd.min_free
    return "writes nothing: the disk has less free than min_free" if is_full else "works"


def _engine_table(model: str, numbers: EngineNumbers | None) -> Table:
    table = _table(f"engine of {model}", "" if numbers else "does not answer")
    table.add_column("number")
    table.add_column("value", justify="right")
    values = {} if numbers is None else numbers.gauges | numbers.counters
    for name, value in values.items():
        if name.startswith(("cache_", "tier_")):
            table.add_row(name, _size(int(value)) if "nbytes" in name else f"{value:g}")
    return table


def _entries_table(entries: Iterable[EntryLine], names: Mapping[str, str]) -> Table:
    table = _table("entries", "")
    for column in ("tier", "tenant", "up to", "tokens", "class", "time left", "bytes", "key"):
        justify: JustifyMethod = (
            "right" if column in ("tokens", "class", "time left", "bytes") else "left"
        )
        table.add_column(
            column,
            justify=justify,
            overflow="fold",
            min_width=SHOWN_DIGITS if column == "key" else None,
        )
    for entry in sorted(entries, key=lambda entry: (entry.tenant, -entry.ttl_left_s)):
        left = format_duration(round(entry.ttl_left_s)) if entry.ttl_left_s > 0 else "expired"
        left = "pinned" if entry.pinned else left
        tenant = names.get(entry.tenant, entry.tenant)
        place = (entry.tier, escape(tenant), entry.position, str(entry.offset))
        table.add_row(
            *place,
            format_duration(entry.ttl_s),
            left,
            _size(entry.nbytes),
            entry.key[:SHOWN_DIGITS],
        )
    return table


def _damage_table(damaged: Iterable[Damage]) -> Table:
    table = _table("damaged", "")
    for column in ("tier", "where", "object", "problem"):
        table.add_column(column, overflow="fold")
    for damage in damaged:
        table.add_row(damage.tier, escape(damage.where), damage.key, damage.problem)
    return table


def _table(title: str, caption: str) -> Table:
    return Table(
        title=escape(title),
        caption=caption or None,
        title_justify="left",
        caption_justify="left",
        box=None,
    )


def _size(nbytes: int) -> str:
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if nbytes >= factor:
            return f"{nbytes / factor:.1f} {unit}"
    return f"{nbytes} B"


@contextmanager
def _bar() -> Iterator[Reached]:
    """A progress bar on a terminal, and nothing elsewhere."""
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=_err, transient=True, disable=not _err.is_terminal) as bars:
        task = bars.add_task("", total=None)
        yield lambda done_nbytes, total_nbytes: bars.update(
            task, completed=done_nbytes, total=total_nbytes
        )
