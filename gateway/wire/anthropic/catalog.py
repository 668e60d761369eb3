"""The model list in Anthropic's shape. Source: anthropic 2.14 `types/model_info.py`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import orjson

from gateway.backends.base import ModelInfo
from gateway.wire.anthropic.paging import read_page


def encode_models(models: Mapping[str, ModelInfo], query: Mapping[str, str]) -> bytes:
    """The page that `query` asks for. Raises `InvalidRequest`."""
    page = read_page(query, list(models))
    first, last = (page.ids[0], page.ids[-1]) if page.ids else (None, None)
    data = [_model(models[name], name) for name in page.ids]
    return orjson.dumps({"data": data, "has_more": page.has_more, "first_id": first, "last_id": last})


def encode_model(model: ModelInfo, requested: str) -> bytes:
    return orjson.dumps(_model(model, requested))


def _model(model: ModelInfo, name: str) -> dict[str, Any]:
    """`pcg` tells which model answers under this name, and what it can do."""
    created = datetime.fromtimestamp(int(model.created_at_s), UTC)
    return {
        "type": "model",
        "id": name,
        "display_name": model.name,
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
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
