"""The problems of a policy. Knows neither YAML nor the schema.

PolicyError      the policy cannot be used; `problems` holds everything found wrong with it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake, its place and its remedy. Never holds the value of a secret.

    `line` and `column` count from 1; None where the file as a whole (or no file) is meant. `path`
    is dotted, list items by their index from 0: `dialects.2.match`. `suggestion` is a name the
    author may have meant.
    """

    file: str
    line: int | None
    column: int | None
    path: str
    message: str
    suggestion: str | None = None

    def __str__(self) -> str:
        """`policy.yaml:12: caching.unmarked_tll: unknown key; did you mean "unmarked_ttl"?`"""
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        path = f"{self.path}: " if self.path else ""
        hint = f'; did you mean "{self.suggestion}"?' if self.suggestion else ""
        return f"{place}: {path}{self.message}{hint}"


class PolicyError(Exception):
    """The policy cannot be used. `str()` is one line per problem, in the order of the file."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)
