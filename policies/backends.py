"""The section `backends` of the policy file:
upstream engines and providers that requests are passed to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Literal, TypeAlias

from pydantic import Field

from policies.rules import PresetName
from policies.sections import Section
from policies.upstream_url import BaseUrl
from policies.values import (
    BackendName,
    Flag,
    OptionalSecret,
    PositiveCount,
    PositiveDuration,
    Text,
    UpstreamUrl,
)

Api: TypeAlias = Literal["anthropic", "openai"]
"""The wire format an upstream speaks."""

_WILDCARDS: Final = frozenset("*?[")


class BackendModelPolicy(Section):
    match: Text = Field(
        default="*", description="Requested model id; * ? [] are wildcards, case counts."
    )
    model: Text | None = Field(
        default=None,
        description="What the upstream calls it: put into the body in place of the requested id. "
        "Left out: the body passes "
        "as it is, byte for byte.",
    )


class TimeoutsPolicy(Section):
    connect: PositiveDuration = Field(default=5.0, description="Longest wait for a connection.")
    answer: PositiveDuration = Field(
        default=600.0, description="Longest wait for the beginning of an answer."
    )
    silence: PositiveDuration = Field(
        default=300.0, description="Longest wait between two pieces of an answer."
    )


class BackendPolicy(Section):
    """One upstream. Prices and rules are those of the model id that is sent to it."""

    name: BackendName = Field(
        default="upstream", description="Name in metrics, log and Cache-Status."
    )
    api: Api = Field(
        default="openai",
        description="The format it speaks. Requests are not translated: clients of the other one "
        "get a 400.",
    )
    base_url: UpstreamUrl = Field(
        default=BaseUrl("http://127.0.0.1:8000"),
        description="Root of its API. Clients' paths are appended; a version at its end, such as "
        "/v1, replaces theirs.",
    )
    models: tuple[BackendModelPolicy, ...] = Field(
        default=(BackendModelPolicy(),),
        description="Model ids it serves. Ids written out come before patterns, and backends "
        "before the aliases of models.",
    )
    api_key: OptionalSecret = Field(
        default=None,
        description="Key to show the upstream, best as ${ENV:NAME} or ${FILE:/run/secrets/x}. "
        "none: no key.",
    )
    key_header: Literal["auto", "bearer", "x-api-key"] = Field(
        default="auto",
        description="How the key is sent. auto: x-api-key to Anthropic's API, else Authorization: "
        "Bearer.",
    )
    pass_client_key: Flag = Field(
        default=False,
        description="Show the upstream the key that the client sent. Only without api_key and "
        "without tenants.",
    )
    preset: PresetName | Literal["auto"] = Field(
        default="auto",
        description="Whose TTL classes and usage fields its answers have; qwen on Anthropic's "
        "API: input_tokens is the whole "
        "prompt. auto: those of dialects for the model id; an id that no line names is an "
        "engine's, whose writes without a TTL class are input.",
    )
    max_requests: PositiveCount = Field(
        default=256, description="Requests it gets at a time; further ones are refused."
    )
    timeouts: TimeoutsPolicy = Field(
        default=TimeoutsPolicy(), description="How long it is waited for."
    )


@dataclass(frozen=True, slots=True)
class UpstreamMatch:
    """The upstream for a requested model id, and its name for the model. `renamed`: not the
    requested id."""

    backend: BackendPolicy
    model: str
    renamed: bool


def find_upstream(
    backends: Iterable[BackendPolicy], model_id: str, *, exact: bool
) -> UpstreamMatch | None:
    """The first backend with an entry for the id: one that is written out where `exact`, else a
    pattern."""
    for backend in backends:
        for entry in backend.models:
            if (
                entry.match == model_id
                if exact
                else is_pattern(entry.match) and fnmatchcase(model_id, entry.match)
            ):
                model = entry.model or model_id
                return UpstreamMatch(backend, model, renamed=model != model_id)
    return None


def is_pattern(match: str) -> bool:
    """Whether an id holds wildcards."""
    return bool(_WILDCARDS & set(match))
