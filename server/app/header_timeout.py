"""Header time-out and size limit for uvicorn, which has neither.

A connection is closed if its request line and headers are not complete after the time-out, or are larger than the
limit, or if it sends as many bytes between the chunks of a body or after it. `server.app.middleware` limits bodies.
"""

import asyncio
from typing import ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES: Final = 64 * 1024
"""Most bytes of a request line and its headers; also of trailers."""


class HeaderLimitProtocol(HttpToolsProtocol):
    """HTTP/1.1 with a time-out and a size limit for the request line and headers (the head)."""

    head_seconds: ClassVar[float]
    _head: asyncio.TimerHandle | None = None
    """Closes the connection; None while no head is awaited."""
    _head_bytes = 0
    _beside_body_bytes = 0
    """Bytes received since the head, or since the last bytes of the body."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the parent
        """Start the time-out of the first head."""
        super().connection_made(transport)
        self._start_timeout()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the time-out."""
        self._cancel_timeout()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse, and check the size of the head and of what is neither head nor body."""
        self._beside_body_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._head is not None:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self.send_400_response("The headers are too large.")
        elif self.cycle is None or self.cycle.response_complete:
            self._start_timeout()
        elif self.cycle.more_body and self._beside_body_bytes > HEAD_BYTES:
            self.send_400_response("The bytes outside of the body are too large.")

    def on_message_begin(self) -> None:
        """Start the time-out of the head, unless it runs already."""
        super().on_message_begin()
        if self._head is None:
            self._start_timeout()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. Ignore trailers, which come after a body: no proxy has checked them (RFC 9110, 6.5.1)."""
        if self._head is not None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Cancel the time-out."""
        self._beside_body_bytes = 0
        self._cancel_timeout()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._beside_body_bytes = 0
        super().on_body(body)

    def _start_timeout(self) -> None:
        self._head_bytes = 0
        self._head = self.loop.call_later(self.head_seconds, self.timeout_keep_alive_handler)

    def _cancel_timeout(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None


def with_header_timeout(seconds: float) -> type[HeaderLimitProtocol]:
    """Return the protocol with this time-out for the head."""
    return type("HeaderLimitProtocol", (HeaderLimitProtocol,), {"head_seconds": seconds})
