"""Every error a client can be told of, named for the caller's situation.

Each wire format maps every leaf to a status.

GatewayError
├── InvalidRequest         400  the body is wrong; `path` names the field as the caller does
│   ├── ContextExceeded    400  the prompt does not fit the model
│   ├── BadPrompt          400  the model's template refuses these messages
│   └── BadFormat          400  the answer cannot be kept in the form that is asked for
├── Unauthenticated        401  no key, or one we do not know
├── Forbidden              403  an operator's route, asked from where it may not be
├── UnknownModel           404
├── UnknownPath            404
│   └── UnknownResponse    404  an earlier answer, asked for by its id
├── MethodNotAllowed       405
├── BodyLate               408  the rest of the request's body does not come
├── BodyTooLarge           413
├── UnknownEncoding        415  (400 in Anthropic's format) nothing here decodes the body
├── RateLimited            429  a limit of the tenant; `retry_after_s` if known
├── Overloaded             529  (503 in OpenAI's format) the engine is full or restarting
│   └── EngineLost         529  (503) the engine ended over this request, maybe because of it
├── EngineFailed           500  the engine could not finish this request
│   └── Poisonous          500  engines have ended over this request: it is not tried again
├── UpstreamFailed         502  the upstream cannot be reached, broke off, or refuses this gateway
└── TimedOut               504
    └── NotCached          504  the client wanted an answer only if some of its prompt was cached
"""

from __future__ import annotations


class GatewayError(Exception):
    """Base. `message` is shown to the client and holds no secret and no prompt text.

    `code` is the machine-readable word of formats that have one (OpenAI's `invalid_type`,
    `unsupported_value`, ...), and `unsupported` names what a code of Anthropic's is about.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        retry_after_s: float | None = None,
        code: str | None = None,
        unsupported: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.retry_after_s = retry_after_s
        self.code = code
        self.unsupported = unsupported


class InvalidRequest(GatewayError):
    """The body breaks a rule. `path` is dotted like the provider's: `messages.1.content.0.text`."""


class ContextExceeded(InvalidRequest):
    """The prompt leaves no room for an answer."""

    def __init__(self, num_prompt: int, limit: int) -> None:
        super().__init__(
            f"prompt is too long: {num_prompt} tokens > {limit} maximum", path="messages"
        )
        self.num_prompt = num_prompt
        self.limit = limit


class BadPrompt(InvalidRequest):
    """The chat template refused the messages."""


class BadFormat(InvalidRequest):
    """The output format is no grammar, or none that can be kept. Each wire format has a field of
    its own for it."""


class Unauthenticated(GatewayError):
    """No API key, or an unknown one."""


class Forbidden(GatewayError):
    """We know who asks, or need not, and it is still not for them."""


class UnknownModel(GatewayError):
    """No backend serves this model id."""


class UnknownPath(GatewayError):
    """No such route."""


class UnknownResponse(UnknownPath):
    """No such answer is kept for this tenant, or no longer."""


class MethodNotAllowed(GatewayError):
    """The route exists, with another method."""


class BodyLate(GatewayError):
    """Nothing more of the body came within `server.body_timeout`."""


class BodyTooLarge(GatewayError):
    """The body exceeds `server.max_body`."""


class UnknownEncoding(GatewayError):
    """The body's `Content-Encoding` is not decoded here; `known` are those that are."""

    def __init__(self, encoding: str, known: tuple[str, ...] = ("gzip",)) -> None:
        super().__init__(
            f"Content-Encoding {encoding[:80]!r} is not supported; send {', '.join(known)} or none",
            code="request_body_encoding_unsupported",
        )
        self.known = known


class RateLimited(GatewayError):
    """The tenant is over a limit."""


class Overloaded(GatewayError):
    """Nothing is wrong with the request; there is no room for it now."""


class EngineLost(Overloaded):
    """The engine that served this request is gone. The client may try again; nobody does for it."""


class EngineFailed(GatewayError):
    """The engine broke while serving this request."""


class Poisonous(EngineFailed):
    """A request with this content has ended engines, and is not given to another."""


class UpstreamFailed(GatewayError):
    """The upstream could not be reached, broke off, or does not take our key."""


class TimedOut(GatewayError):
    """The request took longer than it may."""


class NotCached(TimedOut):
    """`Cache-Control: only-if-cached`, and nothing was (RFC 9111, section 5.2.1.7)."""
