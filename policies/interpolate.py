"""`${ENV:NAME}`, `${ENV:NAME:-default}` and `${FILE:/path}` in a text.

The only place of the package that reads other files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

INTERPOLATED_PATTERN: Final = r"\$\{(ENV|FILE):[^}]+\}"
"""Regular expression of a text that holds a reference."""

_REFERENCE: Final = re.compile(r"\$(?P<escaped>\$\{)|\$\{(?P<body>[^}]*)\}")
_VARIABLE: Final = re.compile(
    r"^(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>.*))?$", re.DOTALL
)
_MAX_SECRET_NBYTES: Final = 64 * 1024


class InterpolationError(ValueError):
    """A reference that leads nowhere. The message names the reference, never its value."""


@dataclass(frozen=True, slots=True)
class Interpolator:
    """Resolves references against an environment; relative file paths start at `folder`."""

    environ: Mapping[str, str]
    folder: Path

    def resolve(self, text: str) -> str:
        """The text with every reference replaced; `$${` is a literal `${`. Raises
        InterpolationError."""
        return _REFERENCE.sub(self._replace, text)

    def _replace(self, match: re.Match[str]) -> str:
        if match["escaped"]:
            return "${"
        scheme, _, rest = match["body"].partition(":")
        if scheme == "ENV":
            return self._variable(rest)
        if scheme == "FILE":
            return self._file(rest)
        raise InterpolationError(
            "a reference is ${ENV:NAME} or ${FILE:/path}; a plain ${ is written $${"
        )

    def _variable(self, body: str) -> str:
        match = _VARIABLE.match(body)
        if match is None:
            raise InterpolationError(
                "${ENV:...} needs the name of a variable, then :- and a default if you like"
            )
        value = self.environ.get(match["name"], "")
        if not value and match["default"] is not None:
            return match["default"]
        if match["name"] not in self.environ:
            raise InterpolationError(f"environment variable {match['name']} is not set")
        return value

    def _file(self, name: str) -> str:
        """Without the line break at the end, which editors and `echo` add."""
        try:
            with (self.folder / name).open("rb") as file:
                content = file.read(_MAX_SECRET_NBYTES + 1)
        except OSError as error:
            raise InterpolationError(f"cannot read file {name}: {error.strerror}") from None
        except ValueError:
            raise InterpolationError(
                "the path of a file holds a character that no path can hold"
            ) from None
        if len(content) > _MAX_SECRET_NBYTES:
            raise InterpolationError(f"file {name} is larger than {_MAX_SECRET_NBYTES} bytes")
        try:
            return content.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise InterpolationError(f"file {name} is not UTF-8 text") from None
