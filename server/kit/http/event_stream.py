"""Server-sent events: the answer (https://html.spec.whatwg.org/multipage/server-sent-events.html).

A client that does not take a message within the time-out is dropped: a client that vanished is noticed in no other way.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.kit.errors import LudusError
from server.kit.http.problems import problem_response

MEDIA_TYPE = "text/event-stream"


def encode_event(seq: int, data: Mapping[str, object]) -> bytes:
    """Encode one event as a message. JSON has no raw line breaks, so one `data:` line is enough."""
    return f"id: {seq}\ndata: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def encode_problem(problem: LudusError, scope: Scope) -> bytes:
    """Encode the message `error`, whose data is a problem."""
    return b"event: error\ndata: " + bytes(problem_response(problem, scope).body) + b"\n\n"


class EventStreamResponse(Response):
    """Sends messages until they end, the client leaves, or the client takes none for `send_seconds`."""

    media_type = MEDIA_TYPE

    def __init__(
        self,
        messages: Callable[[Scope], AsyncIterator[bytes]],
        send_seconds: float,
        counted: AbstractContextManager[None],
    ) -> None:
        """`counted` is entered while the stream is open; it gets the TimeoutError of a client that is dropped."""
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._messages = messages
        self._send_seconds = send_seconds
        self._counted = counted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        with self._counted:
            sender = asyncio.create_task(self._send_all(scope, send))
            leaver = asyncio.create_task(self._await_disconnect(receive))
            try:
                await asyncio.wait({sender, leaver}, return_when=asyncio.FIRST_COMPLETED)
                if sender.done():
                    sender.result()
            finally:
                sender.cancel()
                leaver.cancel()
                await asyncio.gather(sender, leaver, return_exceptions=True)

    async def _send_all(self, scope: Scope, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        async with asyncio.timeout(self._send_seconds):
            await send(start)
        async for message in self._messages(scope):
            async with asyncio.timeout(self._send_seconds):  # unlike `wait_for`, without a task for each message
                await send({"type": "http.response.body", "body": message, "more_body": True})
        async with asyncio.timeout(self._send_seconds):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _await_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
