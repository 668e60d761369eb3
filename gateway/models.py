"""The models that answer, as /v1/models lists them."""

from __future__ import annotations

from dataclasses import dataclass

from engine.messages import Capabilities


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model as `/v1/models` lists it."""

    name: str
    context: int
    fingerprint: str
    capabilities: Capabilities
    created_at_s: float


@dataclass(frozen=True, slots=True)
class UpstreamModel:
    """A model that an upstream serves, as `/v1/models` lists it. Nothing else is known of it."""

    upstream: str
