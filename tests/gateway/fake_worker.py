"""An engine worker without an engine:
it speaks the frames and does what the last message's text says.

Loads no model.

Run as `fake_worker.py MODE SOCKET`. Modes: `good`; `version` (another protocol); `refuse` (cannot
load); `exit` (dies at once); `once` (the first process is good, later ones cannot load); `slow`
(says Hello when the FIFO `<model_path>/go` has been written).
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

from engine.config import decode_config
from engine.messages import (
    LENGTH,
    PROTOCOL_VERSION,
    Abort,
    Capabilities,
    Count,
    Counted,
    EngineStats,
    Failed,
    Finished,
    Flush,
    Flushed,
    FromEngine,
    Hello,
    Pin,
    Pinned,
    Snapshot,
    Started,
    Submit,
    TextDelta,
    Tick,
    ToEngine,
    decode_to_engine,
    encode_frame,
)
from engine.prompt.types import Prompt, TextPart
from engine.store.kinds import TIER_KINDS
from engine.types import CacheReport


class FakeWorker:
    """Answers one connection; `open` are the requests it has not finished."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self.open: set[str] = set()
        self.counters = {"aborted": 0.0, "ticks": 0.0}
        self.now_s = 0.0

    def say(self, message: FromEngine) -> None:
        self.peer.sendall(encode_frame(message))

    def answer(self, message: ToEngine) -> None:
        match message:
            case Submit():
                self.generate(message.request_id, said(message.prompt))
            case Abort(request_id):
                if request_id in self.open:
                    self.open.discard(request_id)
                    self.counters["aborted"] += 1
                    self.say(Finished(request_id, "cancelled", 0))
            case Tick(now_s):
                self.counters["ticks"] += 1
                self.now_s = now_s
            case Count(request_id, prompt):
                self.say(Counted(request_id, len(said(prompt))))
            case Pin(request_id, key):
                self.say(Pinned(request_id, "done", len(key), 64))
            case Flush(request_id):
                self.say(Flushed(request_id, 7))
            case Snapshot(request_id):
                self.say(
                    EngineStats(
                        request_id,
                        self.counters,
                        {"open": float(len(self.open)), "now_s": self.now_s},
                    )
                )

    def generate(self, request_id: str, order: str) -> None:
        if order.startswith("fail:"):
            self.say(Failed(request_id, order[5:], "as ordered", num_prompt=9, limit=8))  # type: ignore[arg-type]
            return
        if order == "wrong kind":
            self.say(Counted(request_id, 1))
            return
        if order != "silence":
            self.say(Started(request_id, CacheReport(num_prompt=len(order)), 0.0, 0.0, 0.0))
            self.say(TextDelta(request_id, "Hello", (1,)))
        if order == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if order == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        if order == "garbage":
            self.peer.sendall(LENGTH.pack(3) + b"\xc1\xc1\xc1")
            return
        if order in ("hang", "silence"):
            self.open.add(request_id)
            return
        self.say(TextDelta(request_id, " world", (2,)))
        self.say(Finished(request_id, "stop", 2))


def said(prompt: Prompt) -> str:
    """The text of the last part."""
    part = prompt.messages[-1].parts[-1]
    assert isinstance(part, TextPart)
    return part.text


def read_exactly(peer: socket.socket, nbytes: int) -> bytes:
    """`nbytes` bytes; ends the process when the gateway has gone."""
    data = b""
    while len(data) < nbytes:
        chunk = peer.recv(nbytes - len(data))
        if not chunk:
            sys.exit(0)
        data += chunk
    return data


def main(mode: str, path: str) -> None:
    config = decode_config(sys.stdin.buffer.read(), TIER_KINDS)
    if mode == "exit":
        sys.exit(7)
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.connect(path)
    worker = FakeWorker(peer)
    again = Path(config.model_path) / "ran"
    if mode == "refuse" or (mode == "once" and again.exists()):
        worker.say(Failed("", "internal", "model.safetensors is truncated"))
        sys.exit(3)
    again.touch()
    if mode == "slow":
        (Path(config.model_path) / "go").read_bytes()
    able = Capabilities(tools_first=True, exact=True, runner="fake", dtype="float32", device="cpu")
    version = PROTOCOL_VERSION + (mode == "version")
    worker.say(Hello(version, config.model, f"pid-{os.getpid()}", config.context, able, 0.5))
    while True:
        (nbytes,) = LENGTH.unpack(read_exactly(peer, LENGTH.size))
        worker.answer(decode_to_engine(read_exactly(peer, nbytes)))


if __name__ == "__main__":
    main(*sys.argv[1:])
