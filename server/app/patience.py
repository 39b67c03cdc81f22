"""An end to patience with clients that never finish their headers: uvicorn itself waits for them without limit.

A connection whose request line and headers are not complete after so many seconds is closed, and so is one that sends
more of them than any client of ours would, or as much between the parts of a chunked body and behind it. Bodies are
`server.app.middleware`'s business.
"""

import asyncio
from typing import ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES: Final = 64 * 1024
"""Most bytes of a request line and its headers; also of trailers."""


class ImpatientProtocol(HttpToolsProtocol):
    """HTTP/1.1 with a limit on how long a head may take, and how large it may be."""

    head_seconds: ClassVar[float]
    _head: asyncio.TimerHandle | None = None
    """Ends the connection; None while no head is awaited."""
    _head_bytes = 0
    _beside_body_bytes = 0
    """Received since the head, or the last bytes of the body."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the parent
        """Begin to wait for the first head."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._forget_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse, and look whether a head is under way that is too large, or only seems to come."""
        self._beside_body_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._head is not None:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self.send_400_response("The headers are too large.")
        elif self.cycle is None or self.cycle.response_complete:
            self._await_head()
        elif self.cycle.more_body and self._beside_body_bytes > HEAD_BYTES:
            self.send_400_response("What comes beside the body is too large.")

    def on_message_begin(self) -> None:
        """Begin to wait for the head, unless that has begun."""
        super().on_message_begin()
        if self._head is None:
            self._await_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. A trailer, which comes behind a body, is none (RFC 9110, 6.5.1): no proxy has looked at it."""
        if self._head is not None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Be content."""
        self._beside_body_bytes = 0
        self._forget_head()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._beside_body_bytes = 0
        super().on_body(body)

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._head = self.loop.call_later(self.head_seconds, self.timeout_keep_alive_handler)

    def _forget_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None


def impatient(seconds: float) -> type[ImpatientProtocol]:
    """Return the protocol that waits so long for a head."""
    return type("ImpatientProtocol", (ImpatientProtocol,), {"head_seconds": seconds})
