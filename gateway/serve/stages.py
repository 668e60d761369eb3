"""The stages of one request, each a value with all that is known by then.

    Received    the tenant and the body
    Admitted    parsed, normalized and planned, with the backend that is to answer
    Answering   the events so far; the prompt's bill, and at the end the final one (`answering.py`)
    Ended       outcome, status and error
    Record      the facts of it that are logged and counted (`gateway/bill/record.py`)

A request may end at any stage: `RecordDraft` collects the facts that its record then has. Sends
nothing and asks no policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.backends.base import Backend
from gateway.bill.record import Outcome
from gateway.calls.exchange import Call
from gateway.dialects.dialect import Dialect
from gateway.errors import GatewayError
from gateway.request import Request
from policies.pricing import Prices
from policies.rules import DialectRules

CLIENT_GONE: Final = 499
"""The status that is recorded, and never sent, when the client left before its answer."""


@dataclass(frozen=True, slots=True)
class Received:
    """A request whose tenant is known and whose body has been read."""

    call: Call
    tenant: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request as the backend is to serve it: no later stage asks the policy.

    `served_by` is the policy's name of the model that answers, `context` the length of that model's
    context, None while it is not loaded.
    """

    call: Call
    request: Request
    dialect: Dialect
    rules: DialectRules
    prices: Prices
    served_by: str
    backend: Backend
    context: int | None

    @property
    def model_identity(self) -> str:
        """The name of the model and the fingerprint of its weights, once they are loaded."""
        model = self.backend.model
        return f"{self.served_by} {model.fingerprint if model is not None else ''}"


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a request.

    `status` is 200 for a stream that had begun, even if it failed later. `error` is the error of
    this gateway that the client received.
    """

    outcome: Outcome
    status: int
    error: GatewayError | None = None

    @classmethod
    def failed(cls, error: GatewayError, status: int) -> Ended:
        """The client was sent `error`.

        Where it was raised is forgotten: those frames hold the body and the answer, and would
        outlive the request in a cycle with this.
        """
        error.__traceback__ = error.__context__ = None
        return cls("failed", status, error)


ANSWERED: Final = Ended("answered", 200)
CANCELLED: Final = Ended("cancelled", CLIENT_GONE)
