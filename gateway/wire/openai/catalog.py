"""The model list in OpenAI's shape. Source: openai 3.57 `types/model.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from gateway.models import ModelInfo, UpstreamModel

OWNER = "pcg"


def encode_models(
    models: Mapping[str, ModelInfo | UpstreamModel], query: Mapping[str, str]
) -> bytes:
    """All at once: OpenAI's list has no pages."""
    return orjson.dumps(
        {"object": "list", "data": [_model(model, name) for name, model in models.items()]}
    )


def encode_model(model: ModelInfo | UpstreamModel, requested: str) -> bytes:
    return orjson.dumps(_model(model, requested))


def _model(model: ModelInfo | UpstreamModel, name: str) -> dict[str, Any]:
    """`pcg` holds the model that answers under this name, and its abilities."""
    shown = {"id": name, "object": "model", "created": 0, "owned_by": OWNER, "shutdown_date": None}
    if isinstance(model, UpstreamModel):
        return shown | {"owned_by": model.upstream, "pcg": {"upstream": model.upstream}}
    return shown | {
        "created": int(model.created_at_s),
        "pcg": {
            "model": model.name,
            "context": model.context,
            "fingerprint": model.fingerprint,
            "capabilities": msgspec.to_builtins(model.capabilities),
        },
    }
