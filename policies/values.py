"""The scalar types of the policy file: their text in YAML, their value, their JSON Schema.

Every reader accepts the text form too, because `${ENV:NAME}` always yields text. Messages read
"must be ..." and never quote the value: whether it may be shown is not for a type to decide.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Final, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
)

from policies.redis_url import REDIS_URL_PATTERN, RedisUrl
from policies.size import SIZE_PATTERN, Size, parse_nbytes
from policies.ttl import DURATION_PATTERN, format_duration, parse_duration
from policies.upstream_url import BASE_URL_PATTERN, BaseUrl, Secret

NONE: Final = "none"
"""The word for "no limit" or "off" where a duration stands."""

HIDDEN: Final = "<hidden>"
"""Stands for a secret wherever a policy is written down."""

_HOST_NAME: Final = (
    r"[0-9A-Za-z_-]+(\.[0-9A-Za-z_-]+)*\.?|[0-9A-Fa-f]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*"
)
_ORIGIN: Final = r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[0-9a-z_.-]+)(:[0-9]+)?"

_WHOLE: Final = re.compile(r"^[+-]?\d+$")
_TENANT: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
_BACKEND: Final = r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$"
_DEVICE: Final = r"^(auto|cpu|cuda(:\d+)?)$"


@dataclass(frozen=True, slots=True)
class KeyHash:
    """The SHA-256 of an API key. The key itself is forgotten; neither form is ever printed."""

    digest: bytes = field(repr=False)

    @classmethod
    def of(cls, api_key: str) -> KeyHash:
        return cls(hashlib.sha256(api_key.encode("utf-8", "surrogateescape")).digest())

    def matches(self, other: KeyHash) -> bool:
        """Takes the same time whatever differs."""
        return hmac.compare_digest(self.digest, other.digest)


def _read_key(value: object) -> KeyHash:
    if isinstance(value, KeyHash):
        return value
    if not isinstance(value, str):
        raise ValueError("must be text in quotes, best ${ENV:NAME} or ${FILE:/path}")
    key = value.strip()  # as clients' keys are: a field of HTTP has no space around it
    if not key:
        raise ValueError("must not be empty")
    return KeyHash.of(key)


def _read_whole(value: object) -> int:
    if isinstance(value, str) and _WHOLE.match(value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("must be a whole number")
    return value


def _read_flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value == "true" or value == "false":
        return value == "true"
    raise ValueError("must be true or false")


def _read_decimal(value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise ValueError("must be a number")
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        raise ValueError("must be a number") from None
    if not number.is_finite() or number < 0:
        raise ValueError("must be a number, 0 or more")
    exponent = number.as_tuple().exponent
    if number >= 10**9 or (isinstance(exponent, int) and exponent < -12):
        raise ValueError("must be a number below 1000000000 with at most 12 decimal places")
    return number


def _read_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be text (a number needs quotes)")
    if not value:
        raise ValueError("must not be empty")
    return value


def _read_host(value: object) -> str:
    """An address of IPv6 may stand in brackets, as in a URL."""
    text = _read_text(value).strip()
    return _read_text(text[1:-1] if text.startswith("[") and text.endswith("]") else text)


def _read_host_name(value: object) -> str:
    """As it stands in `Host`, but for the port, which is not asked about."""
    text = _read_host(value).lower().removesuffix(".")
    if not re.fullmatch(_HOST_NAME, text):
        raise ValueError("must be a name or an address, without scheme and port")
    return text


def _read_origin(value: object) -> str:
    """As browsers write it: in lower case, without the scheme's own port and without a path."""
    text = _read_text(value).strip().lower()
    if not re.fullmatch(_ORIGIN, text):
        raise ValueError("must be the origin of a site, such as https://example.com")
    scheme, _, place = text.partition("://")
    own_port = {"http": ":80", "https": ":443"}.get(scheme, "")
    return f"{scheme}://{place.removesuffix(own_port)}" if own_port else text


def _check_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be one line of printable text")
    return text


def _read_positive_duration(value: object) -> float:
    seconds = parse_duration(value)
    if not seconds:
        raise ValueError("must be longer than 0s")
    return seconds


def _optional(read: Callable[[object], Any]) -> PlainValidator:
    """Reads nothing, and the word for it, as None."""
    return PlainValidator(lambda value: None if value in (None, NONE) else read(value))


def _check_class_name(name: str) -> str:
    """A TTL class is named by its nominal duration, so that prices, headers and markers agree on
    it."""
    try:
        nominal_s = parse_duration(name)
    except ValueError:
        nominal_s = 0.0
    if not nominal_s or format_duration(nominal_s) != name:
        raise ValueError("must be a duration in its shortest form, such as 5m, 30m or 1h")
    return name


def _matches(pattern: str, expected: str) -> AfterValidator:
    """Takes a text of the pattern."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"must be {expected} letters, digits or any of . _ -")
        return text

    return AfterValidator(check)


def _read_devices(value: object) -> tuple[str, ...]:
    """One device, or a list of them."""
    names = value if isinstance(value, list | tuple) else [value]
    if not names or not all(
        isinstance(name, str) and re.fullmatch(_DEVICE, name) for name in names
    ):
        raise ValueError('must be "auto", "cpu", "cuda" or "cuda:N", or a list of these')
    return tuple(names)


def _format_devices(names: tuple[str, ...]) -> str | list[str]:
    return names[0] if len(names) == 1 else list(names)


def _duration_schema(*extra: dict[str, Any]) -> WithJsonSchema:
    text = {"type": "string", "pattern": DURATION_PATTERN}
    return WithJsonSchema(
        {"anyOf": [text, {"type": "number", "minimum": 0, "description": "seconds"}, *extra]}
    )


def _text_schema(pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern})


def _hide(value: object) -> str | None:
    return None if value is None else HIDDEN


def _format_optional(seconds: float | None) -> str:
    return NONE if seconds is None else format_duration(seconds)


_AS_DURATION: Final = PlainSerializer(format_duration, return_type=str, when_used="json")
_AS_NUMBER: Final = PlainSerializer(float, return_type=float, when_used="json")
_SIZE_SCHEMA: Final = WithJsonSchema(
    {"anyOf": [{"type": "string", "pattern": SIZE_PATTERN}, {"type": "integer", "minimum": 0}]}
)

Text: TypeAlias = Annotated[str, BeforeValidator(_read_text)]
Host: TypeAlias = Annotated[str, BeforeValidator(_read_host)]
HostName: TypeAlias = Annotated[str, BeforeValidator(_read_host_name)]
Origin: TypeAlias = Annotated[str, BeforeValidator(_read_origin)]
Line: TypeAlias = Annotated[Text, AfterValidator(_check_line)]
"""A text that can stand in a header."""
Count: TypeAlias = Annotated[int, Field(ge=0), BeforeValidator(_read_whole)]
PositiveCount: TypeAlias = Annotated[int, Field(ge=1), BeforeValidator(_read_whole)]
Port: TypeAlias = Annotated[int, Field(ge=0, le=65535), BeforeValidator(_read_whole)]
Flag: TypeAlias = Annotated[bool, BeforeValidator(_read_flag)]
Duration: TypeAlias = Annotated[
    float, PlainValidator(parse_duration), _AS_DURATION, _duration_schema()
]
PositiveDuration: TypeAlias = Annotated[
    float, PlainValidator(_read_positive_duration), _AS_DURATION, _duration_schema()
]
OptionalDuration: TypeAlias = Annotated[
    float | None,
    _optional(_read_positive_duration),
    PlainSerializer(_format_optional, return_type=str, when_used="json"),
    _duration_schema({"const": NONE}),
]
"""None where the file says "none"."""

Number: TypeAlias = Annotated[
    Decimal,
    PlainValidator(_read_decimal),
    _AS_NUMBER,
    WithJsonSchema({"type": "number", "minimum": 0}),
]
"""A price or a multiplier: exact, 0 or more."""

ByteSize: TypeAlias = Annotated[
    Size,
    PlainValidator(Size.parse),
    PlainSerializer(str, return_type=str, when_used="json"),
    _SIZE_SCHEMA,
]
NumBytes: TypeAlias = Annotated[int, PlainValidator(parse_nbytes), _SIZE_SCHEMA]
ClassName: TypeAlias = Annotated[
    Text, AfterValidator(_check_class_name), _text_schema(r"^[1-9]\d*(ms|s|m|h)$")
]
TenantName: TypeAlias = Annotated[Text, _matches(_TENANT, "1 to 64"), _text_schema(_TENANT)]
BackendName: TypeAlias = Annotated[
    Text, _matches(_BACKEND, "a letter, then up to 63"), _text_schema(_BACKEND)
]
Devices: TypeAlias = Annotated[
    tuple[str, ...],
    PlainValidator(_read_devices),
    PlainSerializer(_format_devices, when_used="json"),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": _DEVICE},
                {"type": "array", "minItems": 1, "items": {"type": "string", "pattern": _DEVICE}},
            ]
        }
    ),
]
"""The devices of an engine: one name for all workers, or one after the other."""

ApiKey: TypeAlias = Annotated[
    KeyHash,
    PlainValidator(_read_key),
    PlainSerializer(_hide, return_type=str),
    WithJsonSchema({"type": "string", "minLength": 1}),
]
OptionalRedisUrl: TypeAlias = Annotated[
    RedisUrl | None,
    _optional(RedisUrl.parse),
    PlainSerializer(_hide, return_type=str | None),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": REDIS_URL_PATTERN}, {"const": NONE}]}),
]
"""None where the file says nothing or "none"; like a key, never printed."""

UpstreamUrl: TypeAlias = Annotated[
    BaseUrl,
    PlainValidator(BaseUrl.parse),
    PlainSerializer(str, return_type=str),
    _text_schema(BASE_URL_PATTERN),
]
OptionalSecret: TypeAlias = Annotated[
    Secret | None,
    _optional(Secret.parse),
    PlainSerializer(_hide, return_type=str | None),
    WithJsonSchema({"type": "string", "minLength": 1}),
]
"""None where the file says nothing or "none"; never printed."""
