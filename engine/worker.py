"""One engine in a process of its own, behind a Unix socket:

`python -m engine.worker SOCKET`. Knows no HTTP.

The parent listens on SOCKET, starts this with an `EngineConfig` as JSON on standard input (until
end of file), and gets `Hello` when the model is loaded and warm, or `Failed` with an empty request
id when it can't be. Then frames go both ways (`engine/messages.py`) until one side ends: when the
socket closes, the worker exits, so it never outlives its parent.

Exit statuses: 0 the socket closed or SIGTERM; 1 a frame was unreadable; 3 the model could not be
loaded; 4 an error made the engine useless. SIGINT is ignored: the parent decides. Standard error
gets one JSON object per line, never prompts.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from enum import IntEnum
from pathlib import Path
from typing import Final, assert_never

import msgspec

from engine.cache.prefix_cache import PrefixCache
from engine.cache.tiers.client import TierClients
from engine.config import EngineConfig, decode_config
from engine.constrain.grammars import Grammars
from engine.core import Engine, EngineParts
from engine.errors import EngineError, ModelError, Overloaded
from engine.frames import BrokenFrame, FrameWriter, read_frame
from engine.messages import (
    Abort,
    Capabilities,
    Count,
    Failed,
    Flush,
    FromEngine,
    Pin,
    Snapshot,
    Submit,
    Tick,
    ToEngine,
)
from engine.prompt.render import Renderer
from engine.prompt.template import ChatTemplate
from engine.prompt.tokenizer import HfTokenizer
from engine.schedule.runner import Runner
from engine.store.errors import StoreError
from engine.store.kinds import TIER_KINDS
from engine.store.open import open_tiers

_log = logging.getLogger("engine.worker")

DRAIN_S: Final = 2.0
"""Seconds that an ending worker waits for the step in progress, and for the peer to read what is
pending."""

STAGE_NBYTES: Final = 128 * 1024**2
"""Memory that reads from SSD and Redis go through, touched once, but no more than the pool has:
what about 4,000 tokens of the default model take, twice for as many as are being decrypted."""


class ExitReason(IntEnum):
    """The reason why the worker ended: its exit status."""

    CLEAN = 0
    PROTOCOL = 1
    LOAD_FAILED = 3
    FATAL = 4


def build_engine(
    config: EngineConfig,
    emit: Callable[[FromEngine], None],
    *,
    runner: Runner | None = None,
    on_fatal: Callable[[BaseException], None] = lambda error: None,
) -> Engine:
    """An engine that has not started yet, of the model in `config.model_path` or around `runner`.

    Loads the weights and opens the tiers, so it takes seconds; the tiers are closed when the engine
    has run. Raises `ModelError` when the folder can't be used, `StoreError` when a tier can't.
    """
    folder = Path(config.model_path)
    tokenizer = HfTokenizer.from_folder(folder)
    template = ChatTemplate.load(config.template, folder, tokenizer, config.template_clock)
    runner = _load_runner(config) if runner is None else runner
    config = msgspec.structs.replace(config, block_size=runner.page_size)
    fingerprint = f"{runner.fingerprint}+{tokenizer.fingerprint}+{template.fingerprint}"
    with ExitStack() as opening:
        stage_nbytes = min(STAGE_NBYTES, runner.num_pages * runner.page_nbytes)
        stores = opening.enter_context(
            open_tiers(config, log_progress, waits=True, stage_nbytes=stage_nbytes)
        )
        cache = PrefixCache(
            device=runner,
            num_pages=runner.num_pages,
            page_nbytes=runner.page_nbytes,
            block_size=config.block_size,
            fingerprint=fingerprint,
            root_secret=config.root_secret,
            tiers=TierClients(stores) if stores else None,
            eviction=config.eviction,
            force_store=config.force_store,
            pin_nbytes=config.pin_nbytes,
        )
        resources = opening.pop_all()
    capabilities = Capabilities(
        tools_first=template.features.tools_first,
        exact=runner.exact,
        runner=runner.name,
        dtype=config.dtype,
        device=runner.device,
    )
    context = min(config.context, runner.num_pages * config.block_size)
    renderer, grammars = (
        Renderer(tokenizer, template, context),
        Grammars(tokenizer.for_any_thread()),
    )
    parts = EngineParts(
        runner, cache, tokenizer, renderer, grammars, fingerprint, capabilities, resources
    )
    return Engine(config, parts, emit, on_fatal)


def log_progress(tier: str, num_done: int, num_total: int) -> None:
    """One line per step of opening a tier that holds much."""
    _log.info(
        "opening tier", extra={"fields": {"tier": tier, "done": num_done, "total": num_total}}
    )


def _load_runner(config: EngineConfig) -> Runner:
    """The only place outside `engine.model` that loads torch."""
    from engine.model.load.load import load_runner

    return load_runner(config)


def serve(engine: Engine, sock: socket.socket, writer: FrameWriter) -> ExitReason:
    """Hand frames to a started engine until the peer closes or the engine dies. Closes neither."""
    while True:
        try:
            message = read_frame(sock)
        except BrokenFrame as error:
            _log.error("unreadable frame", exc_info=error)
            return ExitReason.PROTOCOL
        if message is None:
            return ExitReason.CLEAN if engine.failure is None else ExitReason.FATAL
        dispatch(engine, message, writer.write)


def stop_reading(sock: socket.socket) -> None:
    """Wake `serve` up, in whatever thread it is, as if the peer had closed."""
    with suppress(OSError):  # the peer has closed
        sock.shutdown(socket.SHUT_RD)


def dispatch(engine: Engine, message: ToEngine, emit: Callable[[FromEngine], None]) -> None:
    """Hand one message over. What the engine refuses at the door is answered here, with
    `Failed`."""
    if isinstance(message, Tick):
        engine.tick(message)
        return
    try:
        match message:
            case Submit():
                engine.submit(message)
            case Count():
                engine.count(message)
            case Abort():
                engine.abort(message)
            case Flush() | Pin() | Snapshot():
                engine.ask(message)
            case _:
                assert_never(message)
    except Overloaded as error:
        emit(Failed(message.request_id, "overloaded", str(error)))
    except EngineError as error:
        emit(Failed(message.request_id, "internal", str(error)))


def run(path: str, config_json: bytes) -> ExitReason:
    """Connect, load, serve; see the module's docstring. Raises OSError when nobody listens at
    `path`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(path)
        writer = FrameWriter(sock)
        try:
            return _load_and_serve(sock, writer, config_json)
        finally:
            writer.close(DRAIN_S)


def _load_and_serve(sock: socket.socket, writer: FrameWriter, config_json: bytes) -> ExitReason:
    begin_s = time.perf_counter()
    try:
        config = decode_config(config_json, TIER_KINDS)
        engine = build_engine(config, writer.write, on_fatal=lambda error: stop_reading(sock))
        engine.start()
    except Exception as error:
        _log.error("loading failed", exc_info=error)
        message = (
            str(error)
            if isinstance(error, ModelError | StoreError)
            else f"{type(error).__name__}: {error}"
        )
        writer.write(Failed("", "internal", message))
        return ExitReason.LOAD_FAILED
    try:
        hello = engine.hello(time.perf_counter() - begin_s)
        _log.info(
            "ready",
            extra={
                "fields": {
                    "model": hello.model,
                    "context": hello.context,
                    "load_s": round(hello.load_s, 3),
                }
            },
        )
        writer.write(hello)
        return serve(engine, sock, writer)
    finally:
        _end(engine, writer)


def _end(engine: Engine, writer: FrameWriter) -> None:
    """Stop the engine's threads; a step that never returns or a peer that never reads must not keep
    the process."""
    engine.close()
    if not engine.join(DRAIN_S):
        writer.close(timeout_s=0)
        if not engine.join(DRAIN_S):
            _log.critical("the engine does not stop")
            os._exit(ExitReason.FATAL)


class JsonLines(logging.Formatter):
    """One JSON object per record: level, logger, event, the record's `fields`, and the traceback of
    an error."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("engine").setLevel(logging.INFO)


def _exit_on_sigterm(signum: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(ExitReason.CLEAN)


def main(arguments: list[str]) -> int:
    """The process: returns its exit status. Raises OSError when nobody listens at the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _exit_on_sigterm)
    _log_to_stderr()
    (path,) = arguments
    return run(path, sys.stdin.buffer.read())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
