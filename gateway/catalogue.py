"""Which model answers for a requested model id, and with what backend. Knows no wire format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.backends.base import Backend, ModelInfo
from gateway.errors import UnknownModel
from policies.schema import Policy

MAX_MODEL_ID: Final = 256
"""Characters of an id that may name a model: patterns match longer ones too, and records keep them."""

_WILDCARDS: Final = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Served:
    """The model that answers. `name` is the policy's, whatever id was asked for."""

    name: str
    backend: Backend


class Catalogue:
    """The models of a policy with their backends, by model name."""

    def __init__(self, policy: Policy, backends: Mapping[str, Backend]) -> None:
        missing = {model.name for model in policy.models} - set(backends)
        if missing:
            raise ValueError(f"no backend for {sorted(missing)}")
        self._policy = policy
        self._backends = backends

    @property
    def ready(self) -> bool:
        """Whether every model would be served now."""
        return all(backend.ready for backend in self._backends.values())

    def find(self, model_id: str) -> Served:
        """Raises `UnknownModel`."""
        model = self._policy.resolve_model(model_id) if len(model_id) <= MAX_MODEL_ID else None
        if model is None:
            raise UnknownModel(f"model: {model_id[:MAX_MODEL_ID]}", path="model")
        return Served(model.name, self._backends[model.name])

    def listed(self) -> dict[str, ModelInfo]:
        """Ids to show with the model that answers to each: own names in the policy's order, then aliases that are no patterns.

        Models that have not been loaded yet are left out.
        """
        names = [model.name for model in self._policy.models]
        aliases = [alias for model in self._policy.models for alias in model.aliases if not _WILDCARDS & set(alias)]
        found = {name: self.find(name).backend.model for name in (*names, *aliases) if len(name) <= MAX_MODEL_ID}
        return {name: info for name, info in found.items() if info is not None}

    def info(self, model_id: str) -> ModelInfo:
        """Raises `UnknownModel`, also for a model that has not been loaded yet."""
        info = self.find(model_id).backend.model
        if info is None:
            raise UnknownModel(f"model: {model_id}", path="model")
        return info
