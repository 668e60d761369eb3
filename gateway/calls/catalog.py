"""The models by the ids that clients ask for, with their backends. Knows no wire format."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final

from gateway.backends.base import Backend, Upstream
from gateway.errors import InvalidRequest, UnknownModel
from gateway.models import ModelInfo, UpstreamModel
from gateway.request import WireName
from policies.backends import UpstreamMatch, is_pattern
from policies.schema import Policy

MAX_MODEL_ID: Final = 256
"""Characters of an id that may name a model: patterns match longer ones too, and records keep
them."""

MAX_LISTED: Final = 8
"""Ids that an error names."""

SIMILARITY: Final = 0.6
"""Of an id that may have been meant."""

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model that answers. `name` is the policy's, whatever id was asked for."""

    name: str
    backend: Backend


class ModelCatalog:
    """The models of a policy with their backends, by model name, and its upstreams. `titles` are
    the possessives of providers' names."""

    def __init__(
        self,
        policy: Policy,
        backends: Mapping[str, Backend],
        upstreams: Mapping[str, Upstream] = _NONE,
        titles: Mapping[WireName, str] = _NONE,
    ) -> None:
        missing = {model.name for model in policy.models} - set(backends)
        missing |= {backend.name for backend in policy.backends} - set(upstreams)
        if missing:
            raise ValueError(f"no backend for {sorted(missing)}")
        self._policy = policy
        self._backends = backends
        self._upstreams = upstreams
        self._titles = titles

    @property
    def ready(self) -> bool:
        """Whether every model would be served now."""
        return all(backend.ready for backend in self._backends.values())

    def find(self, model_id: str) -> ServedModel:
        """Raises `UnknownModel`."""
        model = self._policy.resolve_model(model_id) if len(model_id) <= MAX_MODEL_ID else None
        if model is None:
            raise UnknownModel(self._unknown(model_id[:MAX_MODEL_ID]), path="model")
        return ServedModel(model.name, self._backends[model.name])

    def upstream_for(self, model_id: str, api: WireName) -> UpstreamMatch | None:
        """The upstream that serves the id in the format `api`; None where none does.

        Raises `InvalidRequest` for a model that is served in another format only.
        """
        if len(model_id) > MAX_MODEL_ID:
            return None
        found = self._policy.upstream_for(model_id, api)
        if found is None and self._policy.resolve_model(model_id) is None:
            for other in self._titles:
                elsewhere = self._policy.upstream_for(model_id, other)
                if elsewhere is not None:
                    message = (
                        f"upstream {elsewhere.backend.name} serves {model_id} in "
                        f"{self._titles[other]} format only, and requests are not translated "
                        f"from {self._titles[api]} format"
                    )
                    raise InvalidRequest(message, path="model")
        return found

    def upstream(self, name: str) -> Upstream:
        """By the backend's name."""
        return self._upstreams[name]

    def listed(self, api: WireName) -> dict[str, ModelInfo | UpstreamModel]:
        """The ids to show to clients of the format `api`, with the model that answers to each: own
        names in the policy's order, then aliases that are no patterns, then those of upstreams.

        Models that have not been loaded yet are left out.
        """
        found: dict[str, ModelInfo | UpstreamModel] = {}
        for name in self._ids():
            with suppress(UnknownModel, InvalidRequest):
                found[name] = self.info(name, api)
        return found

    def info(self, model_id: str, api: WireName) -> ModelInfo | UpstreamModel:
        """Raises `UnknownModel`, also for a model that has not been loaded yet, and as
        `upstream_for` does."""
        match = self.upstream_for(model_id, api)
        if match is not None:
            return UpstreamModel(match.backend.name)
        info = self.find(model_id).backend.model
        if info is None:
            raise UnknownModel(f"model: {model_id}", path="model")
        return info

    def _ids(self) -> tuple[str, ...]:
        """The ids that are no patterns, in the order of the list."""
        names = [model.name for model in self._policy.models]
        aliases = [
            alias
            for model in self._policy.models
            for alias in model.aliases
            if not is_pattern(alias)
        ]
        proxied = [
            entry.match
            for backend in self._policy.backends
            for entry in backend.models
            if not is_pattern(entry.match)
        ]
        return (*names, *aliases, *proxied)

    def _unknown(self, model_id: str) -> str:
        """The message for an id that nothing answers to: the nearest id, and some that are there.
        Case, and what stands before a slash or behind a colon, may differ."""
        listed = tuple(dict.fromkeys(self._ids()))
        ids = {_plain(name): name for name in reversed(listed)}
        near = get_close_matches(_plain(model_id), ids, 1, SIMILARITY)
        meant = f"; did you mean {ids[near[0]]}?" if near else "." if listed else ""
        more = ", ..." if len(listed) > MAX_LISTED else ""
        served = f" Served here: {', '.join(listed[:MAX_LISTED])}{more}" if listed else ""
        return f"model: {model_id}{meant}{served}"


def _plain(model_id: str) -> str:
    """An id as it is compared with others: its last part, without a tag."""
    return model_id.lower().rpartition("/")[2].partition(":")[0]
