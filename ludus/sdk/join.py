"""Join a run: ask the gateway for a collector, wait as it says, retry, and explain failures in a sentence.

Shared by native simulators (`ludus.sdk.connection`) and the bridge of Unity games (`ludus.games.unity.bridge`): token,
session id, waiting, back-off with a time-out, and the relay where a collector's address cannot be reached.
"""

import asyncio
import logging
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Self
from uuid import uuid4

import grpc
import grpc.aio

from ludus.backoff import Backoff
from ludus.http2.client import Http2Channel
from ludus.paths import AnyPath
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.codec import PROTOCOL_VERSION
from ludus.protocol.codes import CloseCode
from ludus.protocol.contract import MAX_SENTENCE
from ludus.protocol.credentials import SIMULATOR_TOKEN, Credential, credential, unsendable
from ludus.protocol.options import DIRECT_SECONDS, MAX_MESSAGE_BYTES, SERVICE, WAITS_METADATA, client_options
from ludus.protocol.tls import CERTIFICATE_VARIABLE, KEY_VARIABLE, ClientTls, is_this_machine, named_by
from ludus.sdk.errors import CannotConnect, Failure, SessionRefused, explain


def client_name(client: str) -> str:
    """Describe this program to the server, as in `ludus-python/1.0 (Linux x86_64, Python 3.11)`.

    It is part of a run's fingerprint. Short: the server takes 100 bytes, and adds to that of the Unity bridge.
    """
    try:
        named = f"{client}/{version('ludus')}"
    except PackageNotFoundError:
        named = client
    python = ".".join(platform.python_version_tuple()[:2])
    return f"{named} ({platform.system()} {platform.machine()}, Python {python})"


JOIN_SECONDS: Final = 10.0
"""Time-out of the gateway's answer, beside the time for which it may hold the call."""
HOLD_SECONDS: Final = 30.0
"""Time for which the gateway may hold the call while the run is not ready: less than the time-outs of proxies."""
LONGEST_WAIT_SECONDS: Final = 30.0
"""Upper limit of the pause in a `Wait`, so that a simulator does not sleep through its run."""

REPORT_SECONDS: Final = 3.0
MISTAKES: Final = 5
"""After so many sessions in a row that ended soon by a mistake of the server, joining again is pointless."""
SOON_SECONDS: Final = 60.0
DEAD_COLLECTORS: Final = 3
"""After so many unreachable addresses a simulator asks for relay even if it was connected directly before."""

_END_OF_RUN: Final = {CloseCode.RUN_FINISHED, CloseCode.RUN_CANCELLED, CloseCode.RUN_FAILED}
END_OF_STATE: Final = {
    "SUCCEEDED": CloseCode.RUN_FINISHED,
    "CANCELLED": CloseCode.RUN_CANCELLED,
    "FAILED": CloseCode.RUN_FAILED,
}
"""How a run ends for its simulators, by its final state."""

Report = Callable[[int, str], None]
"""Takes a level of `logging` and a sentence for people."""


def new_session_id() -> str:
    """Draw the id of a simulator's session."""
    return uuid4().hex


@dataclass(frozen=True)
class Target:
    """The run to join, and how to connect to its gateway."""

    server: str
    """host:port of the gateway."""
    run: str
    """Run id, or the name of a run."""
    token: str | None = None
    """The gateway's bearer token. None: that of LUDUS_SIMULATOR_TOKEN, else of LUDUS_TOKEN. Empty: none."""
    label: str = ""
    ca_file: AnyPath | None = None
    """PEM file of the certificate authority. Given: the gateway speaks TLS."""
    connect_timeout_seconds: float | None = 300.0
    """Time-out of retries while the gateway cannot be reached. None: no limit."""
    session_id: str = field(default_factory=new_session_id)
    client_certificate: AnyPath | None = field(default_factory=lambda: named_by(CERTIFICATE_VARIABLE))
    """PEM file of the certificate that this simulator shows, with `client_key`, where the gateway wants one (mTLS)."""
    client_key: AnyPath | None = field(default_factory=lambda: named_by(KEY_VARIABLE))

    @property
    def tls(self) -> ClientTls:
        """The files of TLS."""
        return ClientTls(self.ca_file, self.client_certificate, self.client_key)

    @property
    def credential(self) -> Credential | None:
        """The token to show. Raises CannotConnect for one that gRPC would not send, and does not repeat it."""
        shown = credential(self.token)
        if shown is not None and (character := unsendable(shown.token)) is not None:
            raise CannotConnect(
                "unauthenticated", f"the token {shown.origin} has the character {character!r}, which can't be sent"
            )
        return shown

    @property
    def exposure(self) -> str | None:
        """A warning if a token with more rights than to simulate would cross a network unencrypted, else None."""
        shown = self.credential
        if shown is None or not shown.of_client or self.ca_file is not None or is_this_machine(self.server):
            return None
        return (
            f"the token {shown.origin}, which may do more than simulate, goes to {self.server} unencrypted; set "
            f"{SIMULATOR_TOKEN} to one that `ludus token create --scope simulate` makes, or turn TLS on (a CA file)"
        )

    def with_new_session(self) -> "Target":
        """Return the same target with a new session id."""
        return replace(self, session_id=new_session_id())


@dataclass(frozen=True)
class RunEnd:
    """The end of a run, for its simulators."""

    code: CloseCode
    """RUN_FINISHED, RUN_CANCELLED or RUN_FAILED."""
    reason: str
    """A sentence for people."""
    run_id: str
    """The run's id if it is known, else the requested name."""

    @property
    def finished(self) -> bool:
        """Whether the run reached its end, rather than being cancelled or failing."""
        return self.code is CloseCode.RUN_FINISHED


class CollectorEndpoint:
    """A reachable collector that the gateway assigned. A context manager; `close` disconnects from it."""

    def __init__(
        self,
        client: "JoinClient",
        channel: grpc.aio.Channel | Http2Channel,
        assignment: pb.Assignment,
        address: str,
        *,
        tls: bool,
    ) -> None:
        self.channel = channel
        self.assignment = assignment
        self.address = address
        """host:port that `channel` leads to: the collector's, or the gateway's if it relays."""
        self._join_client = client
        self._tls = tls
        self._welcomed = False

    def welcomed(self) -> None:
        """Record that the collector accepted the simulator: earlier failures are cleared."""
        self._welcomed = True
        self._join_client.connected(directly=not self.assignment.relay)

    def explain(self, error: grpc.aio.AioRpcError) -> Failure:
        """Explain a failed call to the collector."""
        return explain(error, self.address, tls=self._tls, token=self._join_client.target.credential, answered=True)

    async def close(self) -> None:
        """Disconnect."""
        if self._welcomed:
            self._join_client.restart_timeout()
        if self.channel is not self._join_client.gateway:
            await self.channel.close(None)
        if self.assignment.relay and not self._welcomed:
            # The relay failed: the next collector may be reachable directly.
            self._join_client.relay = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class JoinClient:
    """Joins a run for one simulator, again after each failure. A context manager that holds the gateway's channel."""

    def __init__(self, target: Target, report: Report, client: str, service: str = SERVICE) -> None:
        """`service` is the prefix of the method Join: that of simulators, or of edge collectors."""
        self.target = target
        self._service = service
        self.run_id = target.run
        """The run's id, once it is known."""
        self.relay = False
        """Whether to ask the gateway to forward."""
        self._client = client
        self._report = report
        self._tls = target.ca_file is not None
        self._last_report = ""
        self._directly = False
        """Whether a direct session was accepted: then an unreachable address is a dead collector, not a firewall."""
        self._unreached = 0
        """Number of direct addresses in a row that could not be reached."""
        self._backoff = Backoff(0.25, 15.0, jitter=0.5)
        self._answered = False
        """Whether the gateway was ever reached."""
        self._mistakes = 0
        """Sessions in a row that ended soon by a mistake of the server."""
        self._connected_at: float | None = None
        """The time of the newest session, until it ended by such a mistake."""
        self._last_contact = time.monotonic()

    def open(self) -> None:
        """Open a channel to the gateway, in a running event loop. Raises CannotConnect for unusable TLS files."""
        try:
            self.gateway = self._channel(self.target.server, tls=self._tls)
        except ValueError as error:
            raise CannotConnect("tls_files", f"TLS cannot be spoken: {error}") from error

    async def close(self) -> None:
        """Close the channel."""
        await self.gateway.close(None)

    async def __aenter__(self) -> Self:
        self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def warn(self) -> None:
        """Report that the token would cross a network unencrypted. Call once per program."""
        if self.target.exposure is not None:
            self._report(logging.WARNING, self.target.exposure)

    def restart_timeout(self) -> None:
        """Restart the time-out: the simulator did not need the gateway until now."""
        self._last_contact = time.monotonic()

    async def find(self) -> CollectorEndpoint | RunEnd:
        """Return a reachable collector, after any number of attempts, or the end of the run.

        Raises CannotConnect when retrying is pointless (wrong token, no such run, ...) or after the time-out.
        """
        while True:
            outcome = await self._attempt()
            if isinstance(outcome, CollectorEndpoint | RunEnd):
                return outcome
            if isinstance(outcome, Failure):
                await self.back_off(outcome)

    async def ask(self) -> RunEnd | None:
        """Check that the run exists and accepts this simulator, without connecting to a collector.

        Returns the run's end if it has ended. Raises CannotConnect as `find` does.
        """
        while True:
            answer = await self._join(hold_seconds=0)
            if not isinstance(answer, Failure):
                return answer if isinstance(answer, RunEnd) else None
            await self.back_off(answer)

    async def report(self, session_id: str, problem: Failure) -> None:
        """Report a problem to the run, which records it as an event with this code and sentence.

        Best effort: a failure is logged at debug level. Takes 3 s at most.
        """
        request = pb.ReportRequest(
            run=self.run_id, session_id=session_id, code=problem.code, sentence=_fitting(problem.sentence)
        )
        try:
            await self._call(SERVICE, "Report", request, pb.ReportResponse, REPORT_SECONDS)
        except grpc.aio.AioRpcError as error:
            failure = explain(error, self.target.server, tls=self._tls, token=self.target.credential)
            self._report(logging.DEBUG, f"the problem {problem.code} was not reported to the run: {failure.sentence}")

    async def back_off(self, failure: Failure) -> None:
        """Wait before a retry. Raises CannotConnect when retrying is pointless or after the time-out."""
        if failure.permanent:
            raise CannotConnect(failure.code, failure.sentence)
        limit, silent = self.target.connect_timeout_seconds, time.monotonic() - self._last_contact
        if limit is not None and silent > limit:
            raise CannotConnect(failure.code, f"{failure.sentence}; gave up after {silent:.0f} s (--connect-timeout)")
        self.report_once(f"{failure.sentence}; trying again", level=logging.WARNING)
        await asyncio.sleep(self._backoff.pause())

    def interpret_close(self, close: pb.Close) -> RunEnd | Failure:
        """Interpret a server's Close. Raises SessionRefused where joining again would end in the same way."""
        if close.code == CloseCode.INTERNAL_ERROR:
            lasted = self._connected_at is not None and time.monotonic() - self._connected_at > SOON_SECONDS
            self._mistakes, self._connected_at = 1 if lasted else self._mistakes + 1, None
            if self._mistakes >= MISTAKES:
                reason = f"{close.reason}; gave up after {MISTAKES} sessions in a row that ended so ({close.code})"
                raise SessionRefused(close.code, reason)
        else:
            self._mistakes = 0
        if close.rejoin:
            return Failure(close.code, f"the server closed the session: {close.reason}", permanent=False)
        if close.code in _END_OF_RUN:
            return RunEnd(CloseCode(close.code), close.reason, self.run_id)
        raise SessionRefused(close.code, f"{close.reason} ({close.code})")

    def connected(self, *, directly: bool) -> None:
        """Record that a collector accepted the simulator."""
        if not self._mistakes:
            self._backoff.reset()
        self._connected_at = self._last_contact = time.monotonic()
        if directly:
            self._directly, self._unreached = True, 0

    def report_once(self, sentence: str, *, level: int = logging.INFO, again: bool = False) -> None:
        """Report a sentence, unless it equals the previous one."""
        if again or sentence != self._last_report:
            self._report(level, sentence)
        self._last_report = sentence

    def _call(self, service: str, method: str, request: Any, response: Any, timeout: float) -> Any:
        """Begin a call of a unary method of the gateway with the token."""
        call: Any = self.gateway.unary_unary(
            f"{service}{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        shown = self.target.credential
        metadata = () if shown is None else (("authorization", f"Bearer {shown.token}"),)
        return call(request, timeout=timeout, metadata=metadata)

    def _report_wait(self, reason: str) -> None:
        self.report_once(f"waiting: {reason or 'the run is not ready yet'}")

    async def _attempt(self) -> CollectorEndpoint | RunEnd | Failure | None:
        """Join and connect to the collector once. Returns None to retry at once."""
        answer = await self._join(HOLD_SECONDS)
        if isinstance(answer, RunEnd | Failure):
            return answer
        if answer.HasField("wait"):
            self._report_wait(answer.wait.reason)
            await asyncio.sleep(min(max(answer.wait.retry_after_seconds, 0.1), LONGEST_WAIT_SECONDS))
            return None
        assignment = answer.assignment
        address, tls = assignment.address, assignment.tls
        if assignment.relay:
            address, tls = self.target.server, self._tls
        is_near = not tls and is_this_machine(address)
        if assignment.relay and not is_near:
            return CollectorEndpoint(self, self.gateway, assignment, address, tls=tls)
        channel: grpc.aio.Channel | Http2Channel = (
            Http2Channel(address, MAX_MESSAGE_BYTES) if is_near else self._channel(address, tls=tls)
        )
        try:
            await asyncio.wait_for(channel.channel_ready(), DIRECT_SECONDS)
        except TimeoutError:
            await channel.close(None)
            unreached = f"the collector at {address} cannot be reached"
            self._unreached += 1
            # It has probably just died; or the gateway has, which was to relay.
            if assignment.relay or (self._directly and self._unreached < DEAD_COLLECTORS):
                return Failure("collector_unreachable", unreached, permanent=False)
            self._report(logging.INFO, f"{unreached}; asking the gateway to relay")
            self.relay = True
            return None
        except asyncio.CancelledError:
            await channel.close(None)
            raise
        return CollectorEndpoint(self, channel, assignment, address, tls=tls)

    async def _join(self, hold_seconds: float) -> pb.JoinResponse | RunEnd | Failure:
        """Send one JoinRequest, which the gateway may hold for so long."""
        reason = None
        request = pb.JoinRequest(
            run=self.run_id,  # once placed, back to the same run: a newer one may have its name by then
            session_id=self.target.session_id,
            protocol_version=PROTOCOL_VERSION,
            relay=self.relay,
            label=self.target.label,
            client=self._client,
            max_wait_seconds=hold_seconds,
        )
        try:
            call = self._call(self._service, "Join", request, pb.JoinResponse, JOIN_SECONDS + hold_seconds)
            try:
                reason = dict(await call.initial_metadata()).get(WAITS_METADATA)
            except asyncio.CancelledError:
                call.cancel()  # the gateway would hold it on
                raise
            if reason is not None:
                self._report_wait(reason.decode(errors="replace"))
            response: pb.JoinResponse = await call
        except grpc.aio.AioRpcError as error:
            if reason is not None:
                self._last_contact = time.monotonic()  # until now: keepalive would have noticed a silent gateway
            shown = self.target.credential
            failure = explain(error, self.target.server, tls=self._tls, token=shown, answered=self._answered)
            if failure.code != "run_ended":
                return failure
            code = END_OF_STATE.get(failure.run_state, CloseCode.RUN_FINISHED)
            return RunEnd(code, failure.sentence, self.run_id)
        self._last_contact = time.monotonic()
        self._answered = True
        if response.HasField("wait"):
            self._backoff.reset()
        else:
            self.run_id = response.assignment.run_id or self.run_id
        return response

    def _channel(self, address: str, *, tls: bool) -> grpc.aio.Channel:
        host = address.rpartition(":")[0].strip("[]")
        if not tls:
            return grpc.aio.insecure_channel(address, client_options(host))
        return grpc.aio.secure_channel(
            address, grpc.ssl_channel_credentials(*self.target.tls.read()), client_options(host)
        )


def _fitting(sentence: str) -> str:
    """Shorten a sentence in its middle: it begins with the problem and ends with the last lines of a log."""
    encoded = sentence.encode(errors="replace")
    if len(encoded) > MAX_SENTENCE:
        encoded = encoded[: MAX_SENTENCE // 4] + b" ... " + encoded[5 - MAX_SENTENCE * 3 // 4 :]
    return encoded.decode(errors="ignore")
