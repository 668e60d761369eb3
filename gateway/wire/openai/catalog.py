"""The model list in OpenAI's shape. Source: openai 3.57 `types/model.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from gateway.backends.base import ModelInfo

OWNER = "pcg"


def encode_models(models: Mapping[str, ModelInfo]) -> bytes:
    return orjson.dumps({"object": "list", "data": [_model(model, name) for name, model in models.items()]})


def encode_model(model: ModelInfo, requested: str) -> bytes:
    return orjson.dumps(_model(model, requested))


def _model(model: ModelInfo, name: str) -> dict[str, Any]:
    """`pcg` tells which model answers under this name, and what it can do."""
    return {
        "id": name,
        "object": "model",
        "created": int(model.created_at_s),
        "owned_by": OWNER,
        "shutdown_date": None,
        "pcg": {
            "model": model.name,
            "context": model.context,
            "fingerprint": model.fingerprint,
            "capabilities": msgspec.to_builtins(model.capabilities),
        },
    }
