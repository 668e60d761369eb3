"""The whole policy, and the three questions asked of it per request.

Pure: knows no file and no environment.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Literal, Protocol, TypeVar

from pydantic import Field

from policies.backends import BackendPolicy, UpstreamMatch, find_upstream
from policies.pricing import Prices
from policies.rules import DialectPolicy, DialectRules, PresetName, PresetsPolicy
from policies.sections import (
    CachingPolicy,
    EvictionPolicy,
    ModelPolicy,
    ModelPricePolicy,
    PricesPolicy,
    Section,
    ServerPolicy,
    TenantPolicy,
    TiersPolicy,
)


class _Pattern(Protocol):
    @property
    def match(self) -> str: ...


_P = TypeVar("_P", bound=_Pattern)


def first_match(entries: Iterable[_P], model_id: str) -> _P | None:
    """The first entry whose pattern matches the whole id, case and all."""
    return next((entry for entry in entries if fnmatchcase(model_id, entry.match)), None)


class Policy(Section):
    """Everything an operator decides. `policies.load.load_policy` is the way to get one: it adds
    the shipped tables."""

    server: ServerPolicy = Field(default=ServerPolicy(), description="Where and how to listen.")
    models: tuple[ModelPolicy, ...] = Field(
        default=(ModelPolicy(),), description="Models served by an engine of this gateway."
    )
    backends: tuple[BackendPolicy, ...] = Field(
        default=(),
        description="Upstream engines and providers that requests are passed to. With them, "
        "models may be [].",
    )
    caching: CachingPolicy = Field(
        default=CachingPolicy(), description="What is cached, for how long, how it is counted."
    )
    presets: PresetsPolicy = Field(
        default=PresetsPolicy(), description="What each provider's rules are."
    )
    dialects: tuple[DialectPolicy, ...] = Field(
        default=(),
        description="Whose rules a requested model id follows; the first match wins. Other ids: "
        "preset auto. Rules that a line leaves out are the preset's.",
    )
    prices: PricesPolicy = Field(default=PricesPolicy(), description="What tokens cost.")
    tiers: TiersPolicy = Field(
        default=TiersPolicy(), description="Where KV lives besides the device."
    )
    eviction: EvictionPolicy = Field(
        default=EvictionPolicy(), description="What is given up when memory is short."
    )
    tenants: tuple[TenantPolicy, ...] = Field(
        default=(),
        description='Who may use the gateway. None: everyone is the tenant "default", on loopback '
        "only.",
    )

    def resolve_model(self, model_id: str) -> ModelPolicy | None:
        """The model that serves a requested id: by its own name, else the first with a matching
        alias."""
        for model in self.models:
            if model.name == model_id:
                return model
        for model in self.models:
            if any(fnmatchcase(model_id, alias) for alias in model.aliases):
                return model
        return None

    def upstream_for(self, model_id: str, api: str) -> UpstreamMatch | None:
        """The upstream that serves a requested id in the format `api`; None where a model of this
        gateway does, or nothing.

        The first that there is: a model with that name (None), an upstream with the id written
        out, a model with the id written out among its aliases (None), an upstream with a pattern
        for it.
        """
        if any(model.name == model_id for model in self.models):
            return None
        speaking = [backend for backend in self.backends if backend.api == api]
        found = find_upstream(speaking, model_id, exact=True)
        if found is not None or any(model_id in model.aliases for model in self.models):
            return found
        return find_upstream(speaking, model_id, exact=False)

    def rules_for(
        self, model_id: str, wire: PresetName, preset: PresetName | Literal["auto"] = "auto"
    ) -> DialectRules:
        """The caching rules of a request for `model_id` that came in the format `wire`: those of
        `preset` unless it is auto."""
        dialect = first_match(self.dialects, model_id) or DialectPolicy()
        if preset != "auto":
            dialect = DialectPolicy(preset=preset)
        name: PresetName = wire if dialect.preset == "auto" else dialect.preset
        fields = dialect.over(getattr(self.presets, name))
        lifetimes = {name: self.caching.ttl_classes[name] for name in fields["ttl_classes"]}
        fields |= {
            "preset": name,
            "automatic": fields["automatic"] and self.caching.automatic,
            "lifetimes": lifetimes,
            "caching": self.caching,
        }
        return DialectRules.model_construct(**fields)

    def names_provider(self, model_id: str) -> bool:
        """Whether a line of `dialects` says whose model `model_id` is."""
        dialect = first_match(self.dialects, model_id)
        return dialect is not None and dialect.preset != "auto"

    def prices_for(self, model_id: str) -> Prices:
        """The prices of a request for `model_id`."""
        prices = self.prices
        entry = first_match(prices.models, model_id) or ModelPricePolicy()
        write = prices.multipliers.write if entry.write is None else entry.write
        lifetimes = self.caching.ttl_classes
        return Prices(
            version=prices.version,
            input_usd_per_mtok=prices.usd_per_mtok.input if entry.input is None else entry.input,
            output_usd_per_mtok=prices.usd_per_mtok.output
            if entry.output is None
            else entry.output,
            read_multiplier=prices.multipliers.read if entry.read is None else entry.read,
            write_multipliers={lifetimes[name]: multiplier for name, multiplier in write.items()},
        )
