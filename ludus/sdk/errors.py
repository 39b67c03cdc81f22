"""Why a simulator cannot connect, in one sentence for people and one stable name for programs."""

from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from ludus.protocol.codes import CloseCode
from ludus.protocol.credentials import VARIABLES, Credential
from ludus.protocol.options import BROKEN, REASON_METADATA, STATE_METADATA


class SimulatorError(Exception):
    """The simulator cannot play in its run. `code` is a stable name, the message a sentence for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class CannotConnect(SimulatorError):
    """The gateway, or a collector, could not be reached or refused the simulator."""


class SessionRefused(SimulatorError):
    """The server ended the session, and joining again would end the same way. `code` is a `CloseCode`'s value."""


class GameMistake(SimulatorError, ValueError):
    """A game gave a value that cannot be used. Another process of it would give the same."""

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__("bad_game", message)
        self.row = row
        """Row of the value in a batch."""

    def of(self, place: str) -> "GameMistake":
        """Return the same mistake, after the place in which it was made."""
        return GameMistake(f"{place}: {self}", self.row)


class GameLost(Exception):
    """A game's process has ended, hangs, or sends what cannot be read: another process of it may play on.

    `code` is a stable name, the message a sentence for people. Only the game's own session ends, and `ludus simulate`
    starts the game again.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Failure:
    """One failed attempt."""

    code: str
    sentence: str
    permanent: bool
    run_state: str = ""
    """Final state of the run, where the failure is that it has ended."""


_PERMANENT = {
    grpc.StatusCode.UNAUTHENTICATED: "unauthenticated",
    grpc.StatusCode.PERMISSION_DENIED: "forbidden",
    grpc.StatusCode.NOT_FOUND: "run_not_found",
    grpc.StatusCode.FAILED_PRECONDITION: "failed_precondition",
    grpc.StatusCode.INVALID_ARGUMENT: "invalid_argument",
    grpc.StatusCode.UNIMPLEMENTED: "not_a_gateway",
}
"""Statuses that the next attempt would get too -> the code where the server names none."""

_FRESH_TICKET_HELPS = {"bad_ticket", "ticket_expired"}
"""Codes with which a gateway refuses to relay a stream, for instance after a restart with another key."""

_REJOINABLE = {code for code in CloseCode if code.rejoin}
"""Codes with which a collector refuses a Unity player that should join again."""


_BROKEN = ("socket closed", "reset by peer", "broken pipe", "stream removed", "goaway", "ping timeout", "watchdog")
"""gRPC's words for a broken connection, on both sides."""


def explain(
    error: grpc.aio.AioRpcError, address: str, *, tls: bool, token: Credential | None, answered: bool = False
) -> Failure:
    """Return the failure behind a failed call to `address`.

    `token` is the one that was shown; `answered`: something there has answered an earlier attempt.
    """
    trailing: Any = error.trailing_metadata() or ()
    metadata = {str(key): str(value) for key, value in trailing}
    details = error.details() or error.code().name
    code = metadata.get(REASON_METADATA) or _PERMANENT.get(error.code(), "unavailable")
    if code in _FRESH_TICKET_HELPS or code in _REJOINABLE:
        return Failure(code, details, permanent=False)
    match error.code():
        case grpc.StatusCode.UNAUTHENTICATED:
            problem = (
                f"wants a token, and none was given: set {' or '.join(VARIABLES)}"
                if token is None
                else f"does not accept the token {token.origin}"
            )
            return Failure("unauthenticated", f"the gateway at {address} {problem} ({details})", permanent=True)
        case grpc.StatusCode.PERMISSION_DENIED if token is not None:
            return Failure(code, f"{details.rstrip('.')} (it was shown the token {token.origin})", permanent=True)
        case grpc.StatusCode.UNIMPLEMENTED:
            return Failure(
                "not_a_gateway", f"the server at {address} is not a Ludus gateway ({details})", permanent=True
            )
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return Failure("timeout", f"{address} did not answer in time", permanent=False)
        case status if status.name in BROKEN and not metadata:
            return unreachable(details, address, tls=tls, answered=answered)
        case status:
            return Failure(code, details, status in _PERMANENT, metadata.get(STATE_METADATA, ""))


def unreachable(details: str, address: str, *, tls: bool, answered: bool = False) -> Failure:
    """Return the failure behind a transport error. gRPC describes it only in words, which this function reads.

    Where the two sides disagree about TLS, one closes the connection before it has answered anything. A connection that
    breaks later, or to a server that has `answered` before, breaks because the other side or the network is gone.
    """
    text = details.lower()
    if "refused" in text:
        return Failure("nothing_listens", f"nothing listens at {address}", permanent=False)
    if "wrong_version" in text:
        return Failure(
            "tls_mismatch", f"{address} does not speak TLS; connect without a certificate file", permanent=True
        )
    if "hostname verification" in text:
        return Failure("tls_mismatch", f"the certificate of {address} is for another name ({details})", permanent=True)
    if "certificate" in text:
        return Failure("tls_mismatch", f"the certificate of {address} is not trusted ({details})", permanent=True)
    if any(word in text for word in _BROKEN):
        if answered or "failed to connect" not in text:
            sentence = f"the connection to {address} was lost; the server there may have ended"
            return Failure("connection_lost", sentence, permanent=False)
        if tls:
            sentence = (
                f"{address} closed the TLS connection before it answered; it may be starting or ending, or want a "
                "certificate of this client, which LUDUS_CLIENT_CERTIFICATE and LUDUS_CLIENT_KEY name"
            )
        else:
            sentence = (
                f"{address} closed the connection before it answered; it may be starting or ending, or speak TLS, "
                "which naming its authority's file turns on"
            )
        return Failure("unavailable", sentence, permanent=False)
    if "ssl" in text or "handshake" in text:
        sentence = f"the TLS connection to {address} failed" if tls else f"{address} wants TLS"
        return Failure("tls_mismatch", f"{sentence} ({details})", permanent=True)
    if any(word in text for word in ("dns", "name or service", "domain name", "address lookup", "nodename")):
        return Failure("unknown_host", f"the host name in {address!r} cannot be resolved", permanent=False)
    if any(word in text for word in ("http1", "http2 header", "content-type", "http status")):
        sentence = f"the server at {address} speaks no gRPC (the HTTP API has another port than the gateway)"
        return Failure("not_a_gateway", sentence, permanent=True)
    return Failure("unavailable", f"{address} cannot be reached ({details})", permanent=False)
