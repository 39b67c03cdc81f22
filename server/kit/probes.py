"""Probes of processes without an HTTP API: `/healthz` and `/readyz` on the port of their metrics.

`/healthz` says whether the process works, and asks nothing outside it: an orchestrator that ended processes because the
database is away would add a second outage to the first one. `/readyz` says whether it can do what it is asked for.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_TEXT: Final = [("Content-Type", "text/plain; charset=utf-8")]


class LoopHeartbeat:
    """Notes that a process' main loop turns. A process can live although its loop hangs."""

    def __init__(self, limit_seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`limit_seconds`: a turn that takes longer counts as hanging."""
        self._limit = limit_seconds
        self._monotonic = monotonic
        self._at = monotonic()

    def beat(self) -> None:
        """Note one turn."""
        self._at = self._monotonic()

    def is_alive(self) -> bool:
        """Return whether the newest turn was recent. Safe to call from any thread."""
        return self._monotonic() - self._at < self._limit


@dataclass(frozen=True)
class Probes:
    """The answers of a process to probes."""

    is_alive: Callable[[], bool]
    is_ready: Callable[[], bool]

    def around(self, app: "WSGIApplication") -> "WSGIApplication":
        """Return an application that answers probes itself: 200, or 503."""

        def answer(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
            probe = {"/healthz": self.is_alive, "/readyz": self.is_ready}.get(environ["PATH_INFO"])
            if probe is None:
                return app(environ, start_response)
            good = probe()
            start_response("200 OK" if good else "503 Service Unavailable", _TEXT)
            return [b"ok\n" if good else b"failed\n"]

        return answer
