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
from policies.rules import DialectRules, PresetName
from policies.sections import (
    CachingPolicy,
    DialectPolicy,
    EvictionPolicy,
    ModelPolicy,
    ModelPricePolicy,
    PresetPolicy,
    PresetsPolicy,
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
        "preset auto.",
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

        An id that is written out beats a pattern, a model's own name everything, and upstreams the
        aliases of models.
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
        `preset` if one is given."""
        dialect = first_match(self.dialects, model_id) or DialectPolicy()
        if preset != "auto":
            dialect = DialectPolicy(preset=preset)
        name: PresetName = wire if dialect.preset == "auto" else dialect.preset
        rules: PresetPolicy = getattr(self.presets, name)
        rule = rules.model_copy(
            update=dialect.model_dump(
                exclude={"match", "preset", "efforts", "prefill"}, exclude_none=True
            )
        )
        lifetimes = self.caching.ttl_classes
        return DialectRules(
            preset=name,
            min_tokens=rule.min_tokens,
            lookback=rule.lookback,
            max_breakpoints=rule.max_breakpoints,
            ttl_classes={name: lifetimes[name] for name in rule.ttl_classes},
            default_ttl_s=lifetimes[rule.default_ttl],
            automatic=rule.automatic and self.caching.automatic,
            read_step=rule.read_step,
            bills_writes=rule.bills_writes,
            message_ends=rule.message_ends,
            usage_fields=rule.usage_fields,
            unmarked_ttl_s=self.caching.unmarked_ttl,
            usage_mode=self.caching.usage_mode,
            marker_errors=self.caching.marker_errors,
            drop_billing_nonce=self.caching.normalize.billing_nonce == "drop",
            sort_tools=self.caching.normalize.tool_order == "by_name",
            sort_keys=self.caching.normalize.json_keys == "sort",
            single_flight=self.caching.single_flight.bill
            if self.caching.single_flight.enabled
            else "off",
            max_wait_s=self.caching.single_flight.max_wait,
            upgrade_ttl=self.caching.ttl.upgrade == "free",
            max_age_s=self.caching.ttl.max_age,
            efforts=dialect.efforts,
            prefill=dialect.prefill,
        )

    def prices_for(self, model_id: str) -> Prices:
        """What a request for `model_id` is billed at."""
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
