"""Refusals of the gateway, and the gRPC status of every error.

A failed call carries a status, a sentence as its details, and the error's stable name in the trailing metadata
`ludus-reason`. A run that has ended adds its final state as `ludus-run-state`. The names are listed in proto/README.md.
"""

from collections.abc import Collection
from typing import Final, NoReturn

import grpc
import grpc.aio

from ludus.protocol.options import REASON_METADATA, STATE_METADATA, TICKET_METADATA
from server.kit.errors import (
    Conflict,
    ErrorKind,
    Exhausted,
    Forbidden,
    Invalid,
    LudusError,
    Unauthenticated,
    Unavailable,
)

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


class BadJoin(Invalid):
    """A field of a JoinRequest is missing or malformed."""

    code = "bad_join"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"JoinRequest.{field} {problem}.")


class RunEnded(Conflict):
    """The run takes no simulators any more."""

    code = "run_ended"

    def __init__(self, run_id: str, state: str) -> None:
        super().__init__(f"Run {run_id} has ended ({state}) and takes no simulators any more. Create a new run.")
        self.state = state


class ProtocolNotSpoken(Conflict):
    """Client and server speak different versions of the protocol."""

    code = "protocol_version"

    def __init__(self, spoken: int, asked: int) -> None:
        super().__init__(
            f"The client speaks version {asked} of the protocol, this server version {spoken}. "
            f"Use a client library for version {spoken}."
        )


class TokenRefused(Unauthenticated):
    """The bearer token is missing or wrong."""

    code = "unauthenticated"

    def __init__(self, *, given: bool) -> None:
        what = "The token is not the gateway's" if given else "The gateway wants a token"
        super().__init__(
            f"{what}. Send `authorization: Bearer TOKEN` as metadata, of a token with the scope `simulate` "
            "(LUDUS_SIMULATOR_TOKEN or LUDUS_TOKEN for the SDK and the CLI)."
        )


class TokenNotForSimulators(Forbidden):
    """The token has not the scope that simulators need."""

    code = "scope_missing"

    def __init__(self) -> None:
        super().__init__(
            "This token is not for simulators: they need one with the scope `simulate`, which "
            "`ludus token create --scope simulate` makes."
        )


class RunForbidden(Forbidden):
    """The token is bound to another run."""

    code = "run_forbidden"

    def __init__(self, run: str) -> None:
        super().__init__(f"The token is bound to another run than {run!r}. Ask for a token of this run.")
        self.run = run


class RunNameAmbiguous(Conflict):
    """A simulator that may join runs of all projects asks by a name that runs of several projects have."""

    code = "name_ambiguous"

    def __init__(self, run: str, projects: Collection[str]) -> None:
        super().__init__(
            f"Several projects have a run named {run!r}: {', '.join(sorted(projects))}. Join by the run's id, or with "
            "a token that is bound to the run's project."
        )
        self.run = run


class TooManyFailures(Exhausted):
    """An address has sent too many unknown tokens."""

    code = "too_many_requests"

    def __init__(self, per_minute: int, seconds: float) -> None:
        super().__init__(
            f"More than {per_minute} calls with wrong tokens in a minute came from this address. Correct the token, "
            f"and try again in {seconds:.0f} s."
        )


class BadTicket(Unauthenticated):
    """The `ludus-ticket` of a stream to be relayed is missing, wrong or of another installation."""

    code = "bad_ticket"


class NoBridge(BadTicket):
    """A Unity game calls the gateway itself, which has no way to know its run."""

    def __init__(self) -> None:
        super().__init__(
            "A Unity game cannot dial the gateway itself: run `ludus unity RUN` on the game's machine, which brings it "
            f"to its run (it sends {TICKET_METADATA} with each call)."
        )


class OldTicket(Unauthenticated):
    """The `ludus-ticket` of a stream to be relayed has expired."""

    code = "ticket_expired"


class CollectorUnreachable(Unavailable):
    """The gateway itself cannot reach the collector that a stream should be relayed to."""

    code = "collector_unreachable"

    def __init__(self, endpoint: str, *, tls: bool) -> None:
        trust = ", or does not show a certificate of the authority in LUDUS_GATEWAY__TLS_CA, or refuses this gateway's"
        super().__init__(
            f"The collector at {endpoint} does not answer{trust if tls else ''}. Join again for another one."
        )


class CollectorLost(Unavailable):
    """The collector ended while this gateway forwarded a stream or a call, or the connection to it broke."""

    code = "collector_lost"

    def __init__(self, endpoint: str) -> None:
        super().__init__(
            f"The connection to the collector at {endpoint} was lost; it may have ended. Join again for another one."
        )


async def abort(context: "grpc.aio.ServicerContext[bytes, bytes]", error: LudusError) -> NoReturn:
    """Fail a call with an error of ours."""
    metadata = [(REASON_METADATA, error.code)]
    if isinstance(error, RunEnded):
        metadata.append((STATE_METADATA, error.state))
    await context.abort(STATUS[error.kind], str(error), tuple(metadata))
    raise AssertionError("abort raises")
