"""The connection between a supervisor and its trainer: bounded, and never blocking the learner.

A frame is a 4-byte big-endian length and one message (`worker.trainer.messages`), over a Unix stream socket. The
trainer's end has a thread that reads and one that writes. So neither a slow supervisor nor a database outage behind it
delays an update: metric points wait in a bounded backlog that is thinned evenly when it overflows; other messages are
all kept. End of file, or silence for one lease, means that the supervisor is gone: the trainer then ends itself
(`on_silence`).
"""

import contextlib
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable

from server.metrics.points import MetricPoint
from worker.trainer import messages

HEADER = struct.Struct(">I")
MAX_FRAME_BYTES = 64 << 20
SEND_SECONDS = 10.0
"""How long a supervisor waits for a trainer that does not read; the trainer's reader is a thread of its own."""
METRIC_BACKLOG = 4096
"""Metric points that may wait for the supervisor before they are thinned."""


class ConnectionClosed(Exception):
    """The other end is gone."""


def _send(connection: socket.socket, message: messages.Message, timeout: float | None) -> None:
    """Send one frame. Raises `ConnectionClosed` if the other end is gone or takes nothing for `timeout` seconds."""
    payload = messages.encode(message)
    unsent = memoryview(HEADER.pack(len(payload)) + payload)
    try:
        while unsent:
            if not _wait(connection, select.POLLOUT, timeout):
                raise ConnectionClosed(f"the other end has taken nothing for {timeout:g} s")
            with contextlib.suppress(BlockingIOError):
                unsent = unsent[connection.send(unsent, socket.MSG_DONTWAIT) :]
    except OSError as error:
        raise ConnectionClosed(str(error)) from error


def _wait(connection: socket.socket, event: int, timeout: float | None) -> bool:
    """Wait for a blocking socket. Its own time-outs would make the file non-blocking for the other thread, too."""
    poll = select.poll()
    poll.register(connection, event)
    return bool(poll.poll(None if timeout is None else max(0.0, timeout) * 1000))


class FrameReader:
    """Cuts a byte stream into frames."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = bytearray()

    def read(self, timeout: float | None) -> bytes | None:
        """Return the next frame, None if none is complete within `timeout` seconds. Raises `ConnectionClosed`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            frame = self._take()
            if frame is not None:
                return frame
            if not _wait(self._connection, select.POLLIN, None if deadline is None else deadline - time.monotonic()):
                return None
            try:
                chunk = self._connection.recv(1 << 16)
            except OSError as error:
                raise ConnectionClosed(str(error)) from error
            if not chunk:
                raise ConnectionClosed("end of stream")
            self._buffer += chunk

    def _take(self) -> bytes | None:
        if len(self._buffer) < HEADER.size:
            return None
        (length,) = HEADER.unpack_from(self._buffer)
        if length > MAX_FRAME_BYTES:
            raise ConnectionClosed(f"frame of {length} bytes")
        if len(self._buffer) < HEADER.size + length:
            return None
        frame = bytes(self._buffer[HEADER.size : HEADER.size + length])
        del self._buffer[: HEADER.size + length]
        return frame


class SupervisorConnection:
    """The supervisor's end: synchronous. Only `send` may be used from several threads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._reader = FrameReader(connection)

    def send(self, message: messages.ToTrainer) -> None:
        """Send one message. Raises `ConnectionClosed` if the trainer is gone or does not read."""
        with self._sending:
            _send(self._connection, message, SEND_SECONDS)

    def receive(self, timeout: float) -> messages.ToSupervisor | None:
        """Return the next message, or None after `timeout` seconds. Raises `ConnectionClosed`."""
        frame = self._reader.read(timeout)
        return None if frame is None else messages.decode(frame, messages.TO_SUPERVISOR)

    def close(self) -> None:
        """Close this end; the trainer ends itself when it notices."""
        self._connection.close()


class TrainerConnection:
    """The trainer's end: two threads around queues, so that no call of the learner ever waits.

    `on_silence(reason)` is called from the reading thread when the supervisor is gone or has been silent for
    `lease_seconds`; it is expected to end the process.
    """

    def __init__(self, connection: socket.socket, on_silence: Callable[[str], None]) -> None:
        self._connection = connection
        self._reader = FrameReader(connection)
        self._on_silence = on_silence
        self._inbox: deque[messages.Order] = deque()
        self._outbox: deque[messages.Message] = deque()
        self._points: list[MetricPoint] = []
        self._wake = threading.Condition()
        self._closing = False
        self._threads: list[threading.Thread] = []

    def await_job(self) -> messages.Job:
        """Wait without limit for the job. Raises `ConnectionClosed` if the supervisor ends before it sends one."""
        while True:
            frame = self._reader.read(None)
            assert frame is not None, "a read without time-out returns a frame or raises"
            message = messages.decode(frame, messages.TO_TRAINER)
            if isinstance(message, messages.Job):
                return message

    def start(self, lease_seconds: float) -> None:
        """Start both threads; from now on the supervisor must not be silent for `lease_seconds`."""
        self._threads = [
            threading.Thread(target=self._read, args=(lease_seconds,), name="connection-reader", daemon=True),
            threading.Thread(target=self._write, name="connection-writer", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def post(self, message: messages.Message) -> None:
        """Queue a message. Never blocks."""
        with self._wake:
            if isinstance(message, messages.Metrics):
                self._points += message.points
                if len(self._points) > METRIC_BACKLOG:
                    self._points = self._points[-1::-2][::-1]
            else:
                self._outbox.append(message)
            self._wake.notify()

    def commands(self) -> list[messages.Order]:
        """Return the messages since the last call."""
        taken = []
        while self._inbox:
            taken.append(self._inbox.popleft())
        return taken

    def close(self, timeout: float = 5.0) -> None:
        """Send the queued messages, for `timeout` seconds at most, and stop."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        for thread in self._threads[1:]:
            thread.join(timeout)
        with contextlib.suppress(OSError):  # the supervisor may be gone
            self._connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout)
        self._connection.close()

    def _read(self, lease_seconds: float) -> None:
        reason = f"the supervisor has been silent for {lease_seconds:g} s (LUDUS_WORKER__LEASE_SECONDS)"
        try:
            while (frame := self._reader.read(lease_seconds)) is not None:
                message = messages.decode(frame, messages.TO_TRAINER)
                if not isinstance(message, messages.Heartbeat | messages.Job):
                    self._inbox.append(message)
        except ConnectionClosed:
            reason = "the supervisor is gone"
        if not self._closing:
            self._on_silence(reason)

    def _write(self) -> None:
        while True:
            with self._wake:
                while not (self._outbox or self._points or self._closing):
                    self._wake.wait()
                # Points first: those of a checkpoint's steps come before it, and the last ones before `Finished`.
                batch: list[messages.Message] = [messages.Metrics(points=self._points)] if self._points else []
                batch += self._outbox
                self._points = []
                self._outbox.clear()
                if not batch:
                    return
            try:
                for message in batch:
                    _send(self._connection, message, None)
            except ConnectionClosed:
                return  # the reading thread notices too, and ends the process
