"""The JSON Schema of the policy file, for editors and `pcg schema`. Knows no file."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from policies.interpolate import INTERPOLATED_PATTERN
from policies.keys import sections, without_default
from policies.schema import Policy
from policies.sections import Section

_Schema: TypeAlias = dict[str, Any]

_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE: Final[_Schema] = {"$ref": "#/$defs/Reference"}
_NULL: Final[_Schema] = {"type": "null"}
_SHIPPED: Final = frozenset({"Policy.dialects", "PricesPolicy.models", "PricesPolicy.version"})
"""Keys whose default is a shipped table, not the schema's empty one."""


def json_schema() -> _Schema:
    """Draft 2020-12. Accepts every shape `load_policy` accepts: also keys left empty, also
    references for values."""
    schema = Policy.model_json_schema(mode="validation")
    shapes = schema["$defs"] | {"Policy": schema}
    definitions = {model.__name__: _section(model, shapes[model.__name__]) for model in sections()}
    definitions["Reference"] = {
        "type": "string",
        "pattern": INTERPOLATED_PATTERN,
        "description": "${ENV:NAME}, ${ENV:NAME:-default} or ${FILE:/path}",
    }
    root = definitions.pop("Policy")
    return {"$schema": _DRAFT, "title": "Prompt Cache Gateway policy", **root, "$defs": definitions}


def _section(model: type[Section], schema: _Schema) -> _Schema:
    defaults = model().model_dump(mode="json", exclude_none=True, exclude=without_default(model))
    properties = {}
    for name, value in schema["properties"].items():
        key = {"description": value["description"], **_value(value)}
        is_section = "$ref" in key or "$ref" in key.get("items", {})
        if (
            defaults.get(name) is not None
            and not is_section
            and f"{model.__name__}.{name}" not in _SHIPPED
        ):
            key["default"] = defaults[name]
        properties[name] = key
    return {"type": ["object", "null"], "additionalProperties": False, "properties": properties}


def _value(schema: _Schema) -> _Schema:
    """One value: those the model takes, null, and a reference where a scalar stands."""
    options = [option for option in schema.get("anyOf", [schema]) if option != _NULL]
    first = options[0]
    if "$ref" in first:
        return {"$ref": first["$ref"]}
    if first.get("type") == "array":
        return {"type": ["array", "null"], "items": _value(first["items"])}
    if first.get("type") == "object":
        values = {pattern: _value(value) for pattern, value in first["patternProperties"].items()}
        return {
            "type": ["object", "null"],
            "patternProperties": values,
            "additionalProperties": False,
        }
    scalars = [_without_annotations(option) for option in options]
    return (
        {"type": ["string", "null"]}
        if scalars == [{"type": "string"}]
        else {"anyOf": [*scalars, _REFERENCE, _NULL]}
    )


def _without_annotations(schema: _Schema) -> _Schema:
    return {
        key: value
        for key, value in schema.items()
        if key not in ("title", "description", "default")
    }
