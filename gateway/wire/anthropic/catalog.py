"""The model list in Anthropic's shape. Source: anthropic 2.14 `types/model_info.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import orjson

from gateway.models import ModelInfo, UpstreamModel
from gateway.wire.anthropic.errors import invalid, one_of
from gateway.wire.anthropic.paging import read_page

ACTIVE: Final = "active"
STAGES: Final = (ACTIVE, "deprecated", "retired")

_UNKNOWN: Final = {
    "type": "model",
    "created_at": "1970-01-01T00:00:00Z",
    "lifecycle": ACTIVE,
    "line": None,
    "max_input_tokens": None,
    "max_tokens": None,
    "capabilities": None,
    "deprecated_at": None,
    "retires_at": None,
}
"""A model of an upstream. The format has no word for a date that is not known but the epoch."""


def encode_models(
    models: Mapping[str, ModelInfo | UpstreamModel], query: Mapping[str, str]
) -> bytes:
    """The page that `query` asks for. Raises `InvalidRequest`. Every model here is active."""
    page = read_page(query, list(models) if ACTIVE in _stages(query) else [])
    first, last = (page.ids[0], page.ids[-1]) if page.ids else (None, None)
    data = [_model(models[name], name) for name in page.ids]
    return orjson.dumps(
        {"data": data, "has_more": page.has_more, "first_id": first, "last_id": last}
    )


def _stages(query: Mapping[str, str]) -> Sequence[str]:
    """The stages of life that `lifecycle[]` asks for; without it every one."""
    asked = query.get("lifecycle[]")
    if asked is None:
        return STAGES
    wanted = asked.split(",")
    for stage in wanted:
        if stage not in STAGES:
            raise invalid(("lifecycle",), f"Input should be {one_of(STAGES)}")
    return wanted


def encode_model(model: ModelInfo | UpstreamModel, requested: str) -> bytes:
    return orjson.dumps(_model(model, requested))


def _model(model: ModelInfo | UpstreamModel, name: str) -> dict[str, Any]:
    """`pcg` holds the model that answers under this name, and its abilities."""
    if isinstance(model, UpstreamModel):
        return _UNKNOWN | {"id": name, "display_name": name, "pcg": {"upstream": model.upstream}}
    created = datetime.fromtimestamp(int(model.created_at_s), UTC)
    return {
        "type": "model",
        "id": name,
        "display_name": model.name,
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": ACTIVE,
        "line": None,
        "max_input_tokens": model.context,
        "max_tokens": model.context,
        "capabilities": None,
        "deprecated_at": None,
        "retires_at": None,
        "pcg": {
            "model": model.name,
            "fingerprint": model.fingerprint,
            "capabilities": msgspec.to_builtins(model.capabilities),
        },
    }
