"""Refusals of the gateway, and the gRPC status of every error.

A failed call carries a status, a sentence as its details, and the error's stable name in the trailing metadata
`ludus-reason`. A run that has ended adds its final state as `ludus-run-state`. The names are listed in proto/README.md.
"""

from collections.abc import Collection
from dataclasses import field
from typing import Final, NoReturn

import grpc
import grpc.aio
import structlog

from ludus.protocol.contract import CallRefused
from ludus.protocol.options import TICKET_METADATA
from server.kit.errors import (
    Conflict,
    ErrorKind,
    Exhausted,
    Forbidden,
    LudusError,
    Unauthenticated,
    Unavailable,
)
from server.simulators.models import RunClosed

_log = structlog.get_logger(__name__)

STATUS: Final = {
    ErrorKind.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorKind.GONE: grpc.StatusCode.NOT_FOUND,
    ErrorKind.CONFLICT: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorKind.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorKind.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    ErrorKind.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    ErrorKind.EXHAUSTED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorKind.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
}


class TokenRefused(Unauthenticated, code="unauthenticated"):
    """The bearer token is missing or wrong."""

    given: bool = field(kw_only=True)

    def _sentence(self) -> str:
        problem = "The token is not the gateway's" if self.given else "The gateway wants a token"
        return (
            f"{problem}. Send "
            "`authorization: Bearer TOKEN` as metadata, of a token with the scope `simulate` "
            "(LUDUS_SIMULATOR_TOKEN or LUDUS_TOKEN for the SDK and the CLI)."
        )


class TokenNotForSimulators(Forbidden, code="scope_missing"):
    """The token does not have the scope that simulators need."""

    sentence = (
        "This token is not for simulators: they need one with the scope `simulate`, which "
        "`ludus token create --scope simulate` makes."
    )


class RunForbidden(Forbidden, code="run_forbidden"):
    """The token is bound to another run."""

    run: str
    sentence = "The token is bound to another run than {run!r}. Ask for a token of this run."


class RunNameAmbiguous(Conflict, code="name_ambiguous"):
    """A simulator that may join runs of all projects asks by a name that runs of several projects have."""

    run: str
    projects: Collection[str]

    def _sentence(self) -> str:
        return (
            f"Several projects have a run named {self.run!r}: {', '.join(sorted(self.projects))}. Join by the run's "
            "id, or with a token that is bound to the run's project."
        )


class TooManyFailures(Exhausted, code="too_many_requests"):
    """An address has sent too many unknown tokens."""

    per_minute: int
    seconds: float
    sentence = (
        "More than {per_minute} calls with wrong tokens in a minute came from this address. Correct the token: a right "
        "one is accepted at once."
    )


class GatewayClosing(Unavailable, code="collector_closing"):
    """A gateway that relays an edge collector's stream shuts down."""

    sentence = "The gateway that relays this collector is shutting down; join again."


class BadTicket(Unauthenticated, code="bad_ticket"):
    """The `ludus-ticket` of a stream to be relayed is missing, wrong or of another installation."""

    problem: str
    sentence = "{problem}"


class OldTicket(Unauthenticated, code="ticket_expired"):
    """The `ludus-ticket` of a stream to be relayed has expired."""

    problem: str
    sentence = "{problem}"


class NoBridge(Unauthenticated, code="bad_ticket"):
    """A Unity game calls the gateway itself, which has no way to know its run."""

    sentence = (
        "A Unity game cannot dial the gateway itself: run `ludus unity RUN` on the game's machine, which brings it to "
        f"its run (it sends {TICKET_METADATA} with each call)."
    )


class CollectorUnreachable(Unavailable, code="collector_unreachable"):
    """The gateway itself cannot reach the collector to which a stream should be relayed."""

    endpoint: str
    tls: bool = field(kw_only=True)

    def _sentence(self) -> str:
        trust = ", or does not show a certificate of the authority in LUDUS_GATEWAY__TLS_CA, or refuses this gateway's"
        return (
            f"The collector at {self.endpoint} does not answer{trust if self.tls else ''}. Join again for another one."
        )


class CollectorLost(Unavailable, code="collector_lost"):
    """The collector ended while this gateway forwarded a stream or a call, or the connection to it broke."""

    endpoint: str
    sentence = "The connection to the collector at {endpoint} was lost; it may have ended. Join again for another one."


async def abort(context: "grpc.aio.ServicerContext[bytes, bytes]", error: LudusError | CallRefused) -> NoReturn:
    """Log an error of ours and fail a call with it."""
    if isinstance(error, LudusError):
        state = error.state if isinstance(error, RunClosed) else ""
        refused = CallRefused(error.code, str(error), state, STATUS[error.kind])
    else:
        refused = error
    _log.info("call_refused", code=refused.code, detail=str(error), peer=context.peer())
    await context.abort(refused.status, str(error), refused.metadata)
