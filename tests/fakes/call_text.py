"""Reads forced calls strictly, to check what grammars allow. Knows no leniency."""

from __future__ import annotations

import json
import re

from engine.prompt.call_format import CallFormat


def calls_in(calls: CallFormat, text: str) -> list[tuple[str, str]]:
    """Names and arguments (as written) of an answer that is calls and nothing else, by the frame
    and a JSON parser."""
    found, rest = [], text.removeprefix(calls.before)
    while rest and rest != calls.after:
        match = re.match(re.escape(calls.begin) + r'"?(\w+)"?' + re.escape(calls.middle), rest)
        assert match is not None, rest
        arguments_end = match.end() + json.JSONDecoder().raw_decode(rest[match.end() :])[1]
        found.append((match[1], rest[match.end() : arguments_end]))
        assert rest[arguments_end:].startswith(calls.end)
        rest = rest[arguments_end + len(calls.end) :].removeprefix(calls.between)
    return found
