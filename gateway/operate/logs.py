"""The log: one line per request on standard error.

Never prompt text, completions or keys.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from typing import TextIO

import structlog

from gateway.bill.headers import Bill
from gateway.bill.record import Record
from policies.pricing import format_usd


def set_up_logging(stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """JSON lines on `stream` (standard error), or columns when it is a terminal.

    Called once, by the command; everything else only gets loggers.
    """
    stream = sys.stderr if stream is None else stream
    people = stream.isatty()
    renderer = structlog.dev.ConsoleRenderer() if people else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if people else "iso", utc=not people),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *names: _Lines(stream),
    )


class _Lines(structlog.WriteLogger):
    """Lines of the log. One that cannot be written, because the disk is full or nobody reads the
    pipe any more, is lost without an error."""

    def msg(self, message: str) -> None:
        with contextlib.suppress(OSError):
            super().msg(message)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


class KindAndPlace(logging.Logger):
    """A logger for libraries whose messages may quote a prompt or a key: of an error the log gets
    its class and the place where it was raised. All other records are dropped."""

    def handle(self, record: logging.LogRecord) -> None:
        error, trace = record.exc_info[1:] if record.exc_info else (None, None)
        if error is not None:
            structlog.get_logger(self.name).error(
                "http", error=type(error).__name__, at=traceback.format_tb(trace)
            )


def log_record(record: Record) -> None:
    """One line for one finished request."""
    fields: dict[str, object] = {
        "id": record.request_id,
        "wire": record.wire,
        "route": record.route,
        "status": record.status,
        "outcome": record.outcome,
        "tenant": record.tenant,
        "model": record.model,
        "error": record.error,
        "upstream": record.upstream,
        "upstream_id": record.upstream_id,
        "traceparent": record.traceparent,
        "tracestate": record.tracestate,
        "notes": list(record.notes) or None,
        "ms": round(record.total_s * 1000, 1),
    }
    if record.ttft_s is not None:
        fields["ttft_ms"] = round(record.ttft_s * 1000, 1)
    if record.bill is not None:
        usage = record.bill.usage
        fields |= {"cache": record.bill.word, "prompt": usage.num_prompt}
        if isinstance(record.bill, Bill):
            fields["skipped"] = record.bill.report.skipped
        fields |= {
            "read": usage.cache_read,
            "write": usage.num_written,
            "input": usage.input,
            "output": usage.output,
        }
        fields["usd"] = format_usd(record.bill.charge.total)
        if record.kind == "response_cache":
            fields |= {"kind": record.kind, "saved_usd": format_usd(record.bill.charge.saved)}
    log = structlog.get_logger("pcg")
    log.info("request", **{name: value for name, value in fields.items() if value is not None})
