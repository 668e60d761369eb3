"""Which model answers for a requested model id, and with what backend. Knows no wire format."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from gateway.backends.base import Backend, Upstream
from gateway.errors import InvalidRequest, UnknownModel
from gateway.models import ModelInfo, UpstreamModel
from gateway.request import WireName
from policies.backends import UpstreamMatch, is_pattern
from policies.schema import Policy

MAX_MODEL_ID: Final = 256
"""Characters of an id that may name a model: patterns match longer ones too, and records keep
them."""

_NAMES: Final[Mapping[WireName, str]] = {"anthropic": "Anthropic's", "openai": "OpenAI's"}
_NONE: Final[Mapping[str, Upstream]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model that answers. `name` is the policy's, whatever id was asked for."""

    name: str
    backend: Backend


class ModelCatalog:
    """The models of a policy with their backends, by model name, and its upstreams."""

    def __init__(
        self,
        policy: Policy,
        backends: Mapping[str, Backend],
        upstreams: Mapping[str, Upstream] = _NONE,
    ) -> None:
        missing = {model.name for model in policy.models} - set(backends)
        missing |= {backend.name for backend in policy.backends} - set(upstreams)
        if missing:
            raise ValueError(f"no backend for {sorted(missing)}")
        self._policy = policy
        self._backends = backends
        self._upstreams = upstreams

    @property
    def ready(self) -> bool:
        """Whether every model would be served now."""
        return all(backend.ready for backend in self._backends.values())

    def find(self, model_id: str) -> ServedModel:
        """Raises `UnknownModel`."""
        model = self._policy.resolve_model(model_id) if len(model_id) <= MAX_MODEL_ID else None
        if model is None:
            raise UnknownModel(f"model: {model_id[:MAX_MODEL_ID]}", path="model")
        return ServedModel(model.name, self._backends[model.name])

    def passage(self, model_id: str, api: WireName) -> UpstreamMatch | None:
        """The way to an upstream that serves the id in the format `api`; None where no upstream
        does.

        Raises `InvalidRequest` for a model that is served in another format only.
        """
        if len(model_id) > MAX_MODEL_ID:
            return None
        found = self._policy.upstream_for(model_id, api)
        if found is None and self._policy.resolve_model(model_id) is None:
            for other in _NAMES:
                elsewhere = self._policy.upstream_for(model_id, other)
                if elsewhere is not None:
                    message = (
                        f"upstream {elsewhere.backend.name} serves {model_id} in {_NAMES[other]} "
                        "format only, and requests are "
                        f"not translated from {_NAMES[api]} format"
                    )
                    raise InvalidRequest(message, path="model")
        return found

    def upstream(self, name: str) -> Upstream:
        """By the backend's name."""
        return self._upstreams[name]

    def listed(self, api: WireName) -> dict[str, ModelInfo | UpstreamModel]:
        """Ids to show to clients of the format `api`, with who answers to each: own names in the
        policy's order, then aliases that are no patterns, then those of upstreams.

        Models that have not been loaded yet are left out.
        """
        names = [model.name for model in self._policy.models]
        aliases = [
            alias
            for model in self._policy.models
            for alias in model.aliases
            if not is_pattern(alias)
        ]
        passed = [
            entry.match
            for backend in self._policy.backends
            for entry in backend.models
            if not is_pattern(entry.match)
        ]
        found: dict[str, ModelInfo | UpstreamModel] = {}
        for name in (*names, *aliases, *passed):
            with suppress(UnknownModel, InvalidRequest):
                found[name] = self.info(name, api)
        return found

    def info(self, model_id: str, api: WireName) -> ModelInfo | UpstreamModel:
        """Raises `UnknownModel`, also for a model that has not been loaded yet, and as `passage`
        does."""
        passage = self.passage(model_id, api)
        if passage is not None:
            return UpstreamModel(passage.backend.name)
        info = self.find(model_id).backend.model
        if info is None:
            raise UnknownModel(f"model: {model_id}", path="model")
        return info
