"""Forms of answers that end, hold up or bloat whoever compiles them without care; all are short,
and most are valid."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, Final

from engine.types import OutputFormat

MOST, LEAST = 2**63 - 1, -(2**63)


def schema(value: Any) -> OutputFormat:
    return OutputFormat("json_schema", json.dumps(value))


def chain(length: int, link: Callable[[Any], Any]) -> OutputFormat:
    """Definitions of which each refers to the next, in the way of `link`."""
    places = {f"a{i}": link({"$ref": f"#/$defs/a{i + 1}"}) for i in range(length)}
    return schema({"$ref": "#/$defs/a0", "$defs": places | {f"a{length}": {"type": "null"}}})


def rules(length: int, rule: Callable[[int], str], last: str) -> OutputFormat:
    """A Lark grammar of rules of which each refers to the next."""
    return OutputFormat(
        "lark", "\n".join(["start: r0", *map(rule, range(length)), f"r{length}: {last}"])
    )


def an_array(link: Any) -> Any:
    return {"type": "array", "items": link}


def many_patterns(number: int) -> OutputFormat:
    """An intersection whose automaton is exponential in the number of its parts."""
    return schema(
        {
            "allOf": [
                {"type": "string", "pattern": ".*.*[a].{" + str(i) + "}"} for i in range(number)
            ]
        }
    )


REFUSED: Final = {
    "smallest integer in an enum": schema(
        {"type": "object", "properties": {"id": {"enum": [0, LEAST]}}, "required": ["id"]}
    ),
    "smallest integer as a constant": schema({"const": LEAST}),
    "smallest integer in Lark": OutputFormat(
        "lark", "start: %json " + json.dumps({"enum": [0, LEAST]})
    ),
    "chain of items": chain(1300, an_array),
    "chain of references": chain(2500, lambda link: link),
    "chain of anyOf": chain(1500, lambda link: {"anyOf": [{"type": "string"}, link]}),
    "chain of oneOf": chain(1500, lambda link: {"oneOf": [{"type": "string"}, link]}),
    "chain of properties": chain(
        1000, lambda link: {"type": "object", "properties": {"a": link}, "required": ["a"]}
    ),
    "patterns at once": many_patterns(20),
    "Lark rules": rules(3000, lambda i: f'r{i}: "a" r{i + 1} | "b"', '"c"'),
    "Lark rules that repeat": rules(1500, lambda i: f"r{i}: (r{i + 1})*", '"c"'),
}
"""What no worker is given."""

BORNE: Final = {
    "chain of allOf": chain(1500, lambda link: {"allOf": [{"minLength": 1}, link]}),
    "chain of additionalProperties": chain(
        1000, lambda link: {"type": "object", "additionalProperties": link}
    ),
    "nested items": schema(json.loads('{"items":' * 100 + "{}" + "}" * 100)),
    "nested more": OutputFormat("json_schema", '{"items":' * 900 + "{}" + "}" * 900),
    "bounds of int64": schema({"type": "integer", "minimum": LEAST, "maximum": MOST}),
    "bounds of uint64": schema({"type": "integer", "minimum": 0, "maximum": 2**64 - 1}),
    "bounds of a double": schema(
        {"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308}
    ),
    "beyond 64 bits": schema({"type": "integer", "minimum": 10**30}),
    "many constants": schema({"enum": [f"{i}-{i * 7919}" for i in range(8000)]}),
    "many integers": schema({"enum": list(range(2**53 - 5000, 2**53))}),
    "many items": schema(
        {"type": "array", "items": {"type": "integer"}, "minItems": 10**9, "maxItems": 10**9}
    ),
    "long text": schema({"type": "string", "minLength": 10**6, "maxLength": 10**9}),
    "long text twice": schema(
        {"allOf": [{"type": "string", "minLength": 10**5}, {"pattern": "(ab|ba){100000}"}]}
    ),
    "patterns of names": schema(
        {"type": "object", "patternProperties": {f"^.*{i}.*$": {} for i in range(12)}}
    ),
    "nested repetition": OutputFormat("regex", "((a{1,100}){1,100}){1,100}"),
    "nested groups": OutputFormat("regex", "(" * 240 + "a+" + ")" * 240),
    "backtracking": OutputFormat("regex", "(x+x+)+y.*[ab].{200}"),
    "all of Unicode": OutputFormat("regex", r"(\p{L}{1,50}\W{1,50}){1,50}"),
    "Lark parentheses": OutputFormat("lark", "start: " + "(" * 20_000 + '"a"' + ")" * 20_000),
    "Lark terminals": OutputFormat(
        "lark",
        "start: "
        + " ".join(f"T{i}" for i in range(500))
        + "".join(f"\nT{i}: /.*{i}.*/" for i in range(500)),
    ),
    "Lark intersection": OutputFormat(
        "lark", "start: T\nT: " + " & ".join(f"/.*{chr(97 + i)}.{{{i}}}/" for i in range(20))
    ),
    "Lark and itself": OutputFormat("lark", "start: start start | start | "),
    "Lark ambiguity": OutputFormat("lark", 'start: a*\na: b b | b\nb: "x"* "x"*'),
    "patterns, fewer": many_patterns(9),
}
"""What is refused, or kept without harm."""


def random_hostile_form(seed: int) -> OutputFormat:
    """A schema of the same ingredients, in any order and at any depth."""
    dice = random.Random(seed)
    if dice.random() < 0.2:
        size = dice.choice((3, 30, 300))
        link = dice.choice(
            (
                an_array,
                lambda link: {"anyOf": [link, {"type": "string"}]},
                lambda link: {"allOf": [link, {}]},
            )
        )
        return chain(size * dice.randint(1, 6), link)
    return schema(_hostile(dice, dice.randint(1, 5)))


def _hostile(dice: random.Random, depth: int) -> Any:
    word = dice.choice("abcxyz01")
    if depth == 0:
        number = dice.choice((LEAST, MOST, 2**53 + 1, -(2**53), 10**18, 1e308, 0, -1))
        return dice.choice(
            (
                {"type": "string", "pattern": f".*{word}.{{{dice.choice((3, 30, 3000))}}}"},
                {
                    "type": "string",
                    "pattern": f"^({word}|{word}{word})*$",
                    "maxLength": dice.choice((10, 10**6)),
                },
                {
                    "type": dice.choice(("integer", "number")),
                    dice.choice(("minimum", "exclusiveMaximum")): number,
                },
                {"enum": [number, word, None]},
                {"type": "string", "format": dice.choice(("date-time", "uri", "email", "ipv6"))},
            )
        )
    inner = [_hostile(dice, depth - 1) for _ in range(dice.randint(1, 4))]
    return dice.choice(
        (
            {dice.choice(("allOf", "anyOf", "oneOf")): inner},
            {
                "type": "array",
                "prefixItems": inner,
                "items": inner[0],
                "minItems": dice.choice((0, 50, 10**6)),
            },
            {
                "type": "object",
                "properties": {f"p{i}": one for i, one in enumerate(inner)},
                "required": ["p0"],
            },
            {
                "type": "object",
                "patternProperties": {f"^{word}.*{i}": one for i, one in enumerate(inner)},
            },
            {
                "type": "object",
                "additionalProperties": inner[0],
                "minProperties": dice.choice((0, 40)),
            },
        )
    )
