"""Frames over a real socket pair: order, cuts, back-pressure, a peer that is gone."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from engine.frames import BrokenFrame, FrameWriter, read_frame
from engine.messages import (
    LENGTH,
    MAX_FRAME_NBYTES,
    Abort,
    Counted,
    Snapshot,
    TextDelta,
    Tick,
    decode_from_engine,
    encode_frame,
)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def receive_all(sock: socket.socket) -> list[object]:
    """Every frame until the other side closes."""
    with sock.makefile("rb") as stream:
        messages: list[object] = []
        while header := stream.read(LENGTH.size):
            messages.append(decode_from_engine(stream.read(*LENGTH.unpack(header))))
        return messages


def test_frames_are_read_one_at_a_time(pair: tuple[socket.socket, socket.socket]) -> None:
    """Several frames in one packet are several messages, then comes the end."""
    ours, theirs = pair
    theirs.sendall(encode_frame(Tick(1.5)) + encode_frame(Abort("a")))
    theirs.shutdown(socket.SHUT_WR)
    assert [read_frame(ours), read_frame(ours), read_frame(ours)] == [Tick(1.5), Abort("a"), None]


@pytest.mark.parametrize("num_bytes", range(1, 10))
def test_an_end_inside_a_frame_is_an_end(
    pair: tuple[socket.socket, socket.socket], num_bytes: int
) -> None:
    """Half a frame from a peer that died is never a message."""
    ours, theirs = pair
    theirs.sendall(encode_frame(Snapshot("some request"))[:num_bytes])
    theirs.close()
    assert read_frame(ours) is None


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(LENGTH.pack(MAX_FRAME_NBYTES + 1), id="too long"),
        pytest.param(LENGTH.pack(3) + b"\xc1\xc1\xc1", id="no msgpack"),
        pytest.param(encode_frame(Counted("a", 1)), id="of the other direction"),
    ],
)
def test_what_is_no_frame_is_refused(
    pair: tuple[socket.socket, socket.socket], frame: bytes
) -> None:
    """An announced length past the cap is refused before anything is allocated for it."""
    ours, theirs = pair
    theirs.sendall(frame)
    with pytest.raises(BrokenFrame):
        read_frame(ours)


def test_written_frames_keep_their_order(pair: tuple[socket.socket, socket.socket]) -> None:
    """Everything pending at close is still written."""
    ours, theirs = pair
    writer = FrameWriter(ours)
    messages = [TextDelta("a", str(i), (i,)) for i in range(1000)]
    reader_result: list[object] = []
    reader = threading.Thread(target=lambda: reader_result.extend(receive_all(theirs)))
    reader.start()
    for message in messages:
        writer.write(message)
    writer.close(timeout_s=10)
    ours.shutdown(socket.SHUT_WR)
    reader.join(10)
    assert reader_result == messages


def test_a_slow_reader_slows_the_writer(pair: tuple[socket.socket, socket.socket]) -> None:
    """With the socket and the queue full `write` waits; what it waited with arrives once the peer
    reads."""
    ours, theirs = pair
    writer = FrameWriter(ours, max_pending_nbytes=1000)
    written: list[int] = []
    finished = threading.Event()

    def write() -> None:
        for i in range(200):
            writer.write(TextDelta("a", "x" * 10_000, (i,)))
            written.append(i)
        finished.set()

    threading.Thread(target=write, daemon=True).start()
    assert not finished.wait(0.2)
    assert len(written) * 10_000 < 1_900_000
    reader_result: list[object] = []
    reader = threading.Thread(target=lambda: reader_result.extend(receive_all(theirs)))
    reader.start()
    assert finished.wait(10)
    writer.close(timeout_s=10)
    ours.shutdown(socket.SHUT_WR)
    reader.join(10)
    assert [message.token_ids for message in reader_result if isinstance(message, TextDelta)] == [
        (i,) for i in range(200)
    ]


def test_a_peer_that_is_gone_releases_the_writer(pair: tuple[socket.socket, socket.socket]) -> None:
    """Writing to nobody neither waits nor raises."""
    ours, theirs = pair
    writer = FrameWriter(ours, max_pending_nbytes=1000)
    theirs.close()
    for i in range(200):
        writer.write(TextDelta("a", "x" * 10_000, (i,)))
    writer.close(timeout_s=10)


def test_closing_releases_a_waiting_writer(pair: tuple[socket.socket, socket.socket]) -> None:
    """A peer that never reads can't keep the process: after the timeout what is pending is given
    up."""
    ours, _ = pair
    writer = FrameWriter(ours, max_pending_nbytes=1000)
    finished = threading.Event()

    def write() -> None:
        for i in range(200):
            writer.write(TextDelta("a", "x" * 10_000, (i,)))
        finished.set()

    threading.Thread(target=write, daemon=True).start()
    assert not finished.wait(0.2)
    writer.close(timeout_s=0)
    assert finished.wait(10)
