"""Sends one message to its receiver and returns the result. No database.

Redirects are not followed, proxies of the environment are not used, of an answer only the beginning is read, and the
whole exchange has one time-out.
"""

import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final
from urllib.parse import urlsplit

import httpcore2

from server.webhooks.errors import AddressInvalid
from server.webhooks.guard import AddressRefused, GuardedBackend, Overdue, check_url
from server.webhooks.messages import signed_headers

RESPONSE_BYTES: Final = 1024
"""Length of the stored part of an answer."""
GONE: Final = 410


@dataclass(frozen=True, slots=True)
class DeliveryRequest:
    """A message that is to be sent now."""

    delivery_id: str
    attempt: int
    """1, 2, 3, ..."""
    webhook_id: str
    url: str
    keys: Sequence[str]
    """Secrets that are valid now, the newest first."""
    body: str
    tries: int = 1
    """Attempts with this one since the message was made, or asked for again."""
    run_id: str | None = None
    test: bool = False
    """A user waits for the result: it is tried once."""


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """The result of an attempt."""

    seconds: float
    status: int | None = None
    """Of HTTP; None where no answer came."""
    error: str | None = None
    """Why it failed; None where it succeeded."""
    response: str | None = None
    """The first part of the answer."""
    retry_after: float | None = None
    """Seconds for which the receiver wants to be left alone."""

    @property
    def succeeded(self) -> bool:
        """Whether the message has arrived."""
        return self.error is None

    @property
    def gone(self) -> bool:
        """Whether the receiver wants no more messages at all."""
        return self.status == GONE


class DeliveryClient:
    """Sends messages; safe to share between threads."""

    def __init__(self, *, private: bool, timeout_seconds: float) -> None:
        self._private = private
        self._timeout = timeout_seconds
        self._tls = ssl.create_default_context()
        self._agent = f"Ludus/{version('ludus')}"

    def send(self, request: DeliveryRequest) -> DeliveryResult:
        """Send a message once. A failure is a result, too."""
        began = time.monotonic()
        try:
            status, response, retry_after = self._post(request)
        except (AddressInvalid, AddressRefused) as error:
            why = str(error)
        except (Overdue, httpcore2.TimeoutException):
            why = f"no complete answer within {self._timeout:g} s"
        except (
            httpcore2.NetworkError,
            httpcore2.ProtocolError,
            httpcore2.UnsupportedProtocol,
            OSError,
            ValueError,
        ) as error:
            why = f"{type(error).__name__}: {error}"[:500] if str(error) else type(error).__name__
        else:
            return DeliveryResult(time.monotonic() - began, status, _verdict(status), response, retry_after)
        return DeliveryResult(time.monotonic() - began, error=why)

    def _post(self, request: DeliveryRequest) -> tuple[int, str, float | None]:
        check_url(request.url, private=self._private)  # again: the operator may have changed their mind
        body = request.body.encode()
        signed = signed_headers(request.keys, request.delivery_id, int(time.time()), body)
        headers = [
            ("host", urlsplit(request.url).netloc),
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("user-agent", self._agent),
            ("connection", "close"),
            *signed.items(),
        ]
        backend = GuardedBackend(private=self._private, seconds=self._timeout)
        timeouts = dict.fromkeys(("connect", "read", "write", "pool"), self._timeout)
        with (
            httpcore2.ConnectionPool(ssl_context=self._tls, network_backend=backend) as pool,
            pool.stream("POST", request.url, headers=headers, content=body, extensions={"timeout": timeouts}) as answer,
        ):
            beginning = b""
            for chunk in answer.iter_stream():
                beginning += chunk
                if len(beginning) >= RESPONSE_BYTES:
                    break
            answer_headers = {name.lower(): value.decode("latin-1") for name, value in answer.headers}
            pause = answer_headers.get(b"retry-after", "")
            text = beginning[:RESPONSE_BYTES].decode("utf-8", errors="replace")
            return answer.status, text, float(pause) if pause.isdecimal() else None


def _verdict(status: int) -> str | None:
    if 200 <= status < 300:
        return None
    if 300 <= status < 400:
        return f"the receiver answered {status}; redirects are not followed, give the webhook the address itself"
    if status == GONE:
        return "the receiver answered 410 Gone: it wants no more messages"
    return f"the receiver answered {status}"
