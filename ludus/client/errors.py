"""The exceptions of the client; `ludus.client` draws their tree."""

from collections.abc import Sequence
from typing import Final

from ludus.schemas import ProblemDetail, Run

ANOTHER_SERVER: Final = "start one with `ludus up`, or name another with --server or LUDUS_SERVER"
"""Advice for a server that does not answer."""


class ApiError(Exception):
    """Parent of the client's exceptions."""


class ServerUnreachable(ApiError):
    """The server's address does not answer, or the answer is not from a Ludus server."""

    def __init__(self, server: str, reason: str, advice: str = ANOTHER_SERVER) -> None:
        self.server = server
        self.reason = reason
        super().__init__(f"cannot reach the server at {server} ({reason}); {advice}")


class NotSendable(ApiError, ValueError):
    """A value has no form in JSON or in a header of HTTP. Nothing was sent. `path` says which value."""

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        super().__init__(f"{path} {problem}")


class ProblemAnswer(ApiError):
    """The server answered with a problem (RFC 9457). `code` is stable, `detail` is a sentence for people."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        errors: Sequence[ProblemDetail] = (),
        retry_after: float | None = None,
    ) -> None:
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = tuple(errors)
        self.retry_after = retry_after
        super().__init__(detail)


class NotFound(ProblemAnswer):
    """The requested resource does not exist."""


class Busy(ProblemAnswer):
    """The server is at a limit or not ready; the same request may succeed later."""


class DownloadDamaged(ApiError):
    """A file arrived with another checksum than announced. Nothing was kept of it."""

    def __init__(self, name: str, expected: str, actual: str) -> None:
        self.name = name
        super().__init__(
            f"{name} arrived damaged: SHA-256 {actual}, announced {expected}; download it again, and where "
            "that does not help, have the server look at its own file (`ludus checkpoint verify`)"
        )


class WaitTimedOut(ApiError):
    """The time-out passed before the run got to where it was waited for. `run` is its last known form."""

    def __init__(self, run: Run, seconds: float, silent_seconds: float = 0.0) -> None:
        """`silent_seconds` is how long the server had not answered at the end."""
        self.run = run
        old = (
            f", as far as is known: the server has not answered for {silent_seconds:.0f} s"
            if silent_seconds >= 1
            else ""
        )
        super().__init__(f"run {run.id} is still {run.state} after {round(seconds, 1):g} s{old}")


class RunStalled(ApiError):
    """The run that was waited for does not continue by itself. `run` is its last known form."""

    def __init__(self, run: Run) -> None:
        self.run = run
        if run.state == "PAUSED":
            why = run.stop_detail or run.stop_reason or "no reason was given"
            sentence = f"({why})"
            if run.stop_reason != "simulators_lost":  # its detail has advice already
                sentence += f"; `ludus run resume {run.id}` resumes it"
        else:
            sentence = f"and does not continue by itself. It waits for: {run.waits_for}"
        super().__init__(f"run {run.id} is {run.state} {sentence}")


class NotSaved(ApiError):
    """The checkpoint that was asked for was not written, or not in time."""

    def __init__(self, run: str, why: str) -> None:
        self.run = run
        super().__init__(f"no checkpoint of run {run} was saved: {why}")
