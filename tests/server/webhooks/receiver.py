"""A receiver of webhooks: a real HTTP server on loopback that answers as it is told and remembers what it got."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks import Webhook

from tests.waiting import eventually


@dataclass(frozen=True)
class Received:
    """One request."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    def verified(self, secret: str) -> dict[str, Any]:
        """Return the message, if its signature is right by the standard's own library."""
        message = Webhook(secret).verify(self.body, dict(self.headers))
        assert isinstance(message, dict)
        return message


@dataclass
class Receiver:
    """What came, and what is answered."""

    url: str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"thank you"
    before: Callable[[], None] = lambda: None
    """Called before each answer."""
    received: list[Received] = field(default_factory=list)

    def ids(self) -> list[str]:
        """Return the ids of the messages that came, in order."""
        return [each.headers["webhook-id"] for each in self.received]

    def wait_for(self, count: int, seconds: float = 60.0) -> list[Received]:
        """Return the first requests, once so many have come."""
        eventually(lambda: len(self.received) >= count, f"{count} messages come", seconds)
        return self.received[:count]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Listen on a free port."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.received.append(Received(self.path, headers, body))
            receiver.before()
            try:
                self.send_response(receiver.status)
                for name, value in receiver.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(receiver.body)))
                self.end_headers()
                self.wfile.write(receiver.body)
            except OSError:
                pass  # the sender has given up

        def log_message(self, *_arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_port}/hook"
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
