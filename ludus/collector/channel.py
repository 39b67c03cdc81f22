"""Channel: framed messages with file descriptors over a Unix socket pair, for both ends, never blocking.

A frame is `<u32 payload bytes, u16 kind, u16 descriptors>` and the payload. Bytes that the socket does not take at once
wait in memory until it is writable, so neither the collector nor the learner ever waits for the other. End of file
means that the peer is dead: there is no other way for it to leave.
"""

import socket
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

HEADER = struct.Struct("<IHH")
CHUNK = 1 << 18
MAX_DESCRIPTORS = 16
MAX_BUFFERS = 64
"""Frames in one call of the system, at most."""


class ChannelClosedError(Exception):
    """The peer is gone."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One received message."""

    kind: int
    payload: bytes
    descriptors: tuple[int, ...] = ()
    """File descriptors, owned by the receiver from now on."""
    contents: tuple[bytes, ...] = ()
    """Bytes that a frame from another host carries in place of descriptors (`ludus.collector.edge`)."""


class Channel:
    """One end of a connected stream socket. Not safe for concurrent use: callers with threads hold a lock."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._outgoing: deque[tuple[memoryview, Sequence[int]]] = deque()
        self._blocked = False
        """Whether the socket takes no more for now."""
        self._incoming = bytearray()
        self._descriptors: deque[int] = deque()

    def fileno(self) -> int:
        """Return the descriptor, to wait on."""
        return self._socket.fileno()

    @property
    def pending(self) -> bool:
        """Whether something waits: for the socket to become writable, or for `flush`."""
        return bool(self._outgoing)

    def send(self, kind: int, payload: bytes = b"", descriptors: Sequence[int] = (), *, later: bool = False) -> None:
        """Send a frame, or queue it as far as the socket does not take it. `descriptors` must stay open until then.

        `later`: with the next frame or the next `flush`, by one call of the system: each one wakes the other end.
        """
        frame = HEADER.pack(len(payload), kind, len(descriptors)) + payload
        self._outgoing.append((memoryview(frame), descriptors))
        if not (later or self._blocked):
            self.flush()

    def flush(self) -> None:
        """Send the queued bytes as far as the socket takes them. Raises ChannelClosedError."""
        self._blocked = False
        while self._outgoing:
            first, descriptors = self._outgoing[0]
            try:
                if descriptors:
                    sent = socket.send_fds(self._socket, [first], descriptors)
                else:
                    plain = takewhile(lambda frame: not frame[1], self._outgoing)
                    sent = self._socket.sendmsg([data for data, _ in islice(plain, MAX_BUFFERS)])
            except BlockingIOError:
                self._blocked = True
                return
            except (BrokenPipeError, ConnectionResetError, OSError) as error:
                raise ChannelClosedError from error
            while sent:
                data, _ = self._outgoing[0]
                if sent < len(data):
                    self._outgoing[0] = (data[sent:], ())
                    break
                sent -= len(data)
                self._outgoing.popleft()

    def receive(self) -> list[Frame]:
        """Return the complete frames that have arrived. Raises ChannelClosedError at end of file."""
        closed = False
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._socket, CHUNK, MAX_DESCRIPTORS)
            except BlockingIOError:
                break
            except OSError:
                closed = True
                break
            if not data:
                closed = True
                break
            self._incoming += data
            self._descriptors.extend(descriptors)
            if len(data) < CHUNK:
                break
        frames = self._frames()
        if closed and not frames:
            raise ChannelClosedError
        return frames

    def _frames(self) -> list[Frame]:
        frames = []
        begin = 0
        view = memoryview(self._incoming)
        while len(view) - begin >= HEADER.size:
            length, kind, descriptors = HEADER.unpack_from(view, begin)
            end = begin + HEADER.size + length
            if end > len(view):
                break
            taken = tuple(self._descriptors.popleft() for _ in range(descriptors))
            frames.append(Frame(kind, bytes(view[begin + HEADER.size : end]), taken))
            begin = end
        view.release()
        del self._incoming[:begin]
        return frames

    def close(self) -> None:
        """Close this end."""
        self._socket.close()
        while self._descriptors:
            socket.close(self._descriptors.popleft())
