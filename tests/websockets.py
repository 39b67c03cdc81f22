"""A client of WebSockets for tests: one call of `ludus.v1` on a socket."""

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.options import MAX_MESSAGE_BYTES, SERVICE, TICKET_METADATA

PATIENCE = 60.0


class Refused(Exception):
    """The call failed: its status, its sentence, and its name."""

    def __init__(self, failure: dict[str, Any], code: int) -> None:
        super().__init__(failure["details"])
        self.status: str = failure["status"]
        self.reason: str = failure["metadata"].get("ludus-reason", "")
        self.code = code


class Stream:
    """A stream of Connect."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def send(self, request: pb.ConnectRequest) -> None:
        self.socket.send(request.SerializeToString())

    def receive(self) -> pb.ConnectResponse:
        """Return the next message that is no Wait. Raises Refused, or ConnectionClosed at the end."""
        while True:
            response = pb.ConnectResponse.FromString(message_of(self.socket))
            if response.WhichOneof("message") != "wait":
                return response


def message_of(socket: ClientConnection) -> bytes:
    """Return the next binary message. Raises Refused, ConnectionClosed."""
    while isinstance(message := socket.recv(PATIENCE), str):
        failure = json.loads(message)
        if "status" in failure:
            with suppress(ConnectionClosed):
                socket.recv(PATIENCE)
            raise Refused(failure, socket.close_code or 0)
    return message


@contextmanager
def dial(address: str, method: str, metadata: dict[str, str], **options: Any) -> Iterator[ClientConnection]:
    """Begin a call at `host:port`, or over TLS with `tls`."""
    tls: ssl.SSLContext | None = options.pop("tls", None)
    origin: Origin | None = options.pop("origin", None)
    with connect(
        f"{'ws' if tls is None else 'wss'}://{address}{SERVICE}{method}",
        ssl=tls,
        origin=origin,
        subprotocols=[Subprotocol("ludus.v1")],
        compression=None,
        max_size=MAX_MESSAGE_BYTES,
        proxy=None,
        open_timeout=PATIENCE,
    ) as socket:
        with suppress(ConnectionClosed):  # a page that may not connect is told so at once
            socket.send(json.dumps(metadata))
        yield socket


def join(address: str, run: str, session_id: str = "one", token: str | None = None, **options: Any) -> pb.JoinResponse:
    """Call Join."""
    fields = {name: options.pop(name) for name in ("relay", "max_wait_seconds") if name in options}
    request = pb.JoinRequest(run=run, session_id=session_id, protocol_version=1, client="tests/1", **fields)
    with dial(address, "Join", {"authorization": f"Bearer {token}"} if token else {}, **options) as socket:
        with suppress(ConnectionClosed):
            socket.send(request.SerializeToString())
        return pb.JoinResponse.FromString(message_of(socket))


@contextmanager
def stream(address: str, ticket: str, **options: Any) -> Iterator[Stream]:
    """Open Connect."""
    with dial(address, "Connect", {TICKET_METADATA: ticket}, **options) as socket:
        yield Stream(socket)
