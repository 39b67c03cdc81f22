"""Limits of what a peer may cost a connection (RFC 9113, 10.5).

- Bytes that came: a stream's window (5.2, 6.9.1) is topped up while its messages are read, the connection's as its
  streams are. The peer stops at `CONNECTION_WINDOW` and one message of the largest size, unread and incomplete ones of
  all streams together. A message for whose rest that leaves no room ends its stream.
- Bytes that wait for the peer's windows (6.9): as many, then the server's end ends the connection. It does not read
  from a peer that does not read its socket, either.
- Frames that carry no message (resets, PING, SETTINGS, empty ones, PRIORITY, streams beyond the limit): `CALM_FRAMES`
  at once and `CALM_FRAMES_PER_SECOND`, then the connection ends with ENHANCE_YOUR_CALM (7).
"""

import time
from typing import Final

from ludus.http2.frames import LARGEST_WINDOW, ErrorCode, Violation
from ludus.http2.stream import BadMessage, Stream

CONNECTION_WINDOW: Final = 1 << 24
"""Bytes of all streams that a peer may send before they are read, beside one message of the largest size."""
CALM_FRAMES: Final = 1000.0
"""Frames without a message that a peer may send at once: clients that leave reset all of their streams."""
CALM_FRAMES_PER_SECOND: Final = 100.0


class ReceivedBytes:
    """The connection's window (6.9.1): the peer gets it back as its bytes are read, so it stops at `window`."""

    def __init__(self, max_message_bytes: int) -> None:
        self.window = min(CONNECTION_WINDOW + max_message_bytes, LARGEST_WINDOW)
        """Bytes that the peer may send before it gets new window."""
        self._held = 0
        """That came and are not read yet."""
        self._partial = 0
        """Those of them that belong to incomplete messages."""
        self._read = 0
        """For which the peer has got no new window yet."""

    def take(self, stream: Stream | None, size: int) -> None:
        """Count bytes of a stream, or of none (dropped ones). Raises Violation if the peer had no window."""
        if self._held + self._read + size > self.window:
            raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "more than the connection's window came")
        if stream is None:
            self._read += size
        else:
            self._held += size
            stream.held_bytes += size

    def release(self, stream: Stream, size: int) -> None:
        """Note that so many bytes of a stream were read, or are not kept any more."""
        stream.held_bytes -= size
        self._held -= size
        self._read += size

    def grew(self, size: int) -> None:
        """Note by how many bytes a stream's incomplete message has grown."""
        self._partial += size

    def forget(self, stream: Stream) -> None:
        """Release what is kept of a stream that is not read any more."""
        self._partial -= stream.drop_part()
        self.release(stream, stream.held_bytes)

    def check_room(self, size: int) -> None:
        """Raise BadMessage if incomplete messages leave less than so many bytes of the window for their rests."""
        if self._partial > self.window - size:
            raise BadMessage(8, "the incomplete messages of this connection leave no room for their rests")

    def new_window(self) -> int:
        """Return the window that the peer gets back now: much of it at once, or what it needs to go on."""
        read = self._read
        if read < max(1, min(CONNECTION_WINDOW // 2, self.window - self._held - read)):
            return 0
        self._read = 0
        return read


class Calm:
    """Limits the rate of frames that carry no message."""

    def __init__(self) -> None:
        self._left = CALM_FRAMES
        self._since = time.monotonic()

    def disturb(self, frames: float = 1.0) -> None:
        """Count frames. Raises Violation if there are too many."""
        now = time.monotonic()
        self._left = min(CALM_FRAMES, self._left + (now - self._since) * CALM_FRAMES_PER_SECOND) - frames
        self._since = now
        if self._left < 0:
            sentence = f"over {CALM_FRAMES_PER_SECOND:.0f} frames a second came that carry no message"
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, sentence)
