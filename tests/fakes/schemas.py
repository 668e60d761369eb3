"""Random JSON Schemas of the kinds that requests ask for,
all of them satisfiable and with finite answers.
"""

from __future__ import annotations

import random
import string
from typing import Any

WORDS = (
    "name",
    "age",
    "city",
    "tags",
    "값",
    "is_open",
    "a b",
    'say "hi"',
    "x/y",
    "<|im_end|>",
    "naïve",
    "unit",
    "0",
    "",
)


def random_schema(seed: int) -> dict[str, Any]:
    """An object at the top, like every provider wants it, three levels deep at most."""
    dice = random.Random(seed)
    schema = _object(dice, 3)
    if dice.random() < 0.3:
        schema["$defs"] = {"thing": _value(dice, 1)}
        schema["properties"]["thing"] = {"$ref": "#/$defs/thing"}
        schema["required"] = [*schema["required"], "thing"]
    return schema


def _object(dice: random.Random, depth: int) -> dict[str, Any]:
    names = dice.sample(WORDS, dice.randint(1, 4))
    return {
        "type": "object",
        "properties": {name: _value(dice, depth - 1) for name in names},
        "required": [name for name in names if dice.random() < 0.7],
        "additionalProperties": False,
        "description": dice.choice(WORDS),
    }


def _value(dice: random.Random, depth: int) -> dict[str, Any]:
    makers = [_string, _integer, _number, _enum, _const, _nothing]
    if depth > 0:
        makers += [_array, _any_of, lambda dice, depth: _object(dice, depth)]
    return dice.choice(makers)(dice, depth)


def _string(dice: random.Random, depth: int) -> dict[str, Any]:
    low = dice.randint(0, 3)
    return dice.choice(
        (
            {"type": "string", "minLength": low, "maxLength": low + dice.randint(0, 8)},
            {"type": "string", "maxLength": 40},
            {
                "type": "string",
                "pattern": rf"^[{dice.choice(string.ascii_lowercase)}-z]{{1,5}}-\d{{2}}$",
            },
            {
                "type": "string",
                "format": dice.choice(("date", "time", "date-time", "uuid", "ipv4")),
            },
        )
    )


def _integer(dice: random.Random, depth: int) -> dict[str, Any]:
    low = dice.randint(-50, 50)
    return {"type": "integer", "minimum": low, "maximum": low + dice.randint(0, 2000)}


def _number(dice: random.Random, depth: int) -> dict[str, Any]:
    return dice.choice(
        (
            {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
            {"type": "number", "minimum": -1.5, "maximum": 99},
        )
    )


def _enum(dice: random.Random, depth: int) -> dict[str, Any]:
    return {"enum": dice.sample([*WORDS, 1, 2.5, True, None, "1", {"a": [1]}], dice.randint(1, 5))}


def _const(dice: random.Random, depth: int) -> dict[str, Any]:
    return {"const": dice.choice([*WORDS, 7, False])}


def _nothing(dice: random.Random, depth: int) -> dict[str, Any]:
    return {"type": dice.choice((["boolean", "null"], "boolean", "null"))}


def _array(dice: random.Random, depth: int) -> dict[str, Any]:
    low = dice.randint(0, 2)
    return {
        "type": "array",
        "items": _value(dice, depth - 1),
        "minItems": low,
        "maxItems": low + dice.randint(0, 3),
    }


def _any_of(dice: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_value(dice, depth - 1) for _ in range(dice.randint(2, 3))]}
