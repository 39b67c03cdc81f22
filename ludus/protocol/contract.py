"""The rules of `ludus.v1` that a server checks in a client's messages, beside those of a single step (`codec`).

The collector, the gateway and the fake server for client authors (`ludus.sdk.contract.served_stream`) all check with
these functions: a message that passes there passes here, and each violation has the same code and sentence.
"""

import re
from dataclasses import replace
from typing import Final, TypeVar

import grpc
from google.protobuf.message import DecodeError

from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.codec import PROTOCOL_VERSION
from ludus.protocol.codes import CloseCode, ProtocolError
from ludus.protocol.options import REASON_METADATA, STATE_METADATA
from ludus.protocol.spec import BehaviorSpec
from ludus.protocol.specs import MAX_BEHAVIORS

SESSION_ID: Final = re.compile(r"[0-9A-Za-z_-]{1,64}")
REPORT_CODE: Final = re.compile(r"[0-9a-z_]{1,64}")
MAX_RUN: Final = 200
MAX_LABEL: Final = 200
MAX_CLIENT: Final = 100
"""Longest texts of a client, in bytes."""
MAX_SENTENCE: Final = 4000
"""Longest sentence of a report, in bytes."""
MAX_JOIN_BYTES: Final = 4096
MAX_REPORT_BYTES: Final = 8192
MAX_WAIT_SECONDS: Final = 3600
"""Longest time for which a client may ask a gateway to hold its Join."""
MAX_UNADMITTED_STEPS: Final = 64
"""Steps of a session that are kept while its behavior waits for its first answer."""
MAX_AGENTS: Final = 10_000
"""Agents of one behavior in one session."""
MAX_POSITION_BYTES: Final = 16 << 20
"""Largest position of a simulator that can go back to where it was."""
HELLO_SECONDS: Final = 30.0
"""Time from the stream's opening to Hello."""

_STATUSES: Final = {
    "run_not_found": grpc.StatusCode.NOT_FOUND,
    "unauthenticated": grpc.StatusCode.UNAUTHENTICATED,
    "protocol_version": grpc.StatusCode.FAILED_PRECONDITION,
    "run_ended": grpc.StatusCode.FAILED_PRECONDITION,
}
_Request = TypeVar("_Request", pb.JoinRequest, pb.ReportRequest)


class CallRefused(Exception):
    """A client's call is refused: it ends with `status`, this sentence and `metadata`."""

    def __init__(self, code: str, sentence: str, state: str = "", status: grpc.StatusCode | None = None) -> None:
        """`state` is the run's, where it has ended. `status`: None for that of the code."""
        super().__init__(sentence)
        self.code = code
        self.status = status or _STATUSES.get(code, grpc.StatusCode.INVALID_ARGUMENT)
        self.metadata = ((REASON_METADATA, code), *(((STATE_METADATA, state),) if state else ()))


def read_join(data: bytes) -> pb.JoinRequest:
    """Return a JoinRequest that is well-formed and of this version. Raises CallRefused."""
    request = _read(pb.JoinRequest, data, MAX_JOIN_BYTES)
    if request.protocol_version != PROTOCOL_VERSION:
        spoken = f"protocol_version is {request.protocol_version}, this server speaks {PROTOCOL_VERSION}"
        raise CallRefused("protocol_version", f"{spoken}: use a client library for that version")
    _check_identity(request)
    for field, text, limit in (("label", request.label, MAX_LABEL), ("client", request.client, MAX_CLIENT)):
        _demand(
            len(text.encode()) <= limit and text.isprintable(),
            f"{field} must be printable and have at most {limit} bytes",
        )
    _demand(0 <= request.max_wait_seconds <= MAX_WAIT_SECONDS, f"max_wait_seconds must be from 0 to {MAX_WAIT_SECONDS}")
    return request


def read_report(data: bytes) -> pb.ReportRequest:
    """Return a well-formed ReportRequest. Raises CallRefused."""
    request = _read(pb.ReportRequest, data, MAX_REPORT_BYTES)
    _check_identity(request)
    _demand(REPORT_CODE.fullmatch(request.code), "code must have 1 to 64 characters of [0-9a-z_]")
    _demand(1 <= len(request.sentence.encode()) <= MAX_SENTENCE, f"sentence must have 1 to {MAX_SENTENCE} bytes")
    return request


def _read(kind: type[_Request], data: bytes, limit: int) -> _Request:
    name = kind.DESCRIPTOR.name
    _demand(len(data) <= limit, f"the {name} has {len(data)} bytes, at most {limit}")
    try:
        return kind.FromString(data)
    except DecodeError:
        raise CallRefused("bad_join", f"{len(data)} bytes are no {name}") from None


def _check_identity(request: pb.JoinRequest | pb.ReportRequest) -> None:
    """Check the run and the session id."""
    _demand(request.run, "run is missing; name a run or give its id")
    _demand(
        len(request.run.encode()) <= MAX_RUN and request.run.isprintable(),
        f"run must be printable and have at most {MAX_RUN} bytes",
    )
    _demand(
        SESSION_ID.fullmatch(request.session_id),
        "session_id must have 1 to 64 characters of [0-9A-Za-z_-], a UUID for instance",
    )


def _demand(is_kept: object, rule: str) -> None:
    if not is_kept:
        raise CallRefused("bad_join", rule)


def parse_request(data: bytes, max_bytes: int, *, greeted: bool) -> pb.ConnectRequest:
    """Return a message of a stream, in which a known message is set: before Hello, only that. Raises ProtocolError."""
    check_size(len(data), max_bytes)
    try:
        request = pb.ConnectRequest.FromString(data)
    except DecodeError:
        raise ProtocolError(
            CloseCode.MALFORMED_MESSAGE, f"a message of {len(data)} bytes is no ConnectRequest"
        ) from None
    kind = request.WhichOneof("message")
    if kind is None:
        message = "a message holds neither Hello nor Announce nor Step nor Saved"
        raise ProtocolError(CloseCode.MALFORMED_MESSAGE, message)
    if not greeted and kind != "hello":
        raise hello_missing()
    return request


def check_size(size: int, limit: int) -> None:
    """Raise ProtocolError for a message of too many bytes."""
    if size > limit:
        raise ProtocolError(CloseCode.MESSAGE_TOO_LARGE, f"a message has {size} bytes; at most {limit} can be sent")


def check_hello(hello: pb.Hello, *, greeted: bool) -> None:
    """Raise ProtocolError unless a Hello may come now, and its fields are well formed."""
    if greeted:
        raise ProtocolError(CloseCode.UNEXPECTED_MESSAGE, "Hello came twice; it opens a stream exactly once")
    if hello.protocol_version != PROTOCOL_VERSION:
        raise ProtocolError(
            CloseCode.PROTOCOL_VERSION,
            f"the client speaks protocol version {hello.protocol_version}, this server {PROTOCOL_VERSION}",
        )
    if SESSION_ID.fullmatch(hello.session_id) is None:
        raise ProtocolError(CloseCode.BAD_HELLO, "a session id has 1 to 64 characters of 0-9, A-Z, a-z, _ and -")
    if len(hello.behaviors) > MAX_BEHAVIORS or len(hello.client.encode()) > MAX_CLIENT:
        raise ProtocolError(
            CloseCode.BAD_HELLO, f"at most {MAX_BEHAVIORS} behaviors, and {MAX_CLIENT} bytes of client, are possible"
        )


def check_step_order(step: pb.Step, *, last_step: int, last_reset: int) -> None:
    """Raise ProtocolError unless a step comes after the last one, and names a reset that was issued."""
    if step.step_id <= last_step:
        raise ProtocolError(CloseCode.STEP_ORDER, f"step {step.step_id} came after step {last_step}; ids must grow")
    if step.reset_id > last_reset:
        raise ProtocolError(
            CloseCode.STEP_ORDER, f"step {step.step_id} names reset {step.reset_id}; the last one was {last_reset}"
        )


def check_saved(saved: pb.Saved, *, asked: int) -> None:
    """Raise ProtocolError unless a Saved answers one of the `asked` Saves, with a position that can be kept."""
    if saved.save_id == 0 or saved.save_id > asked:
        raise ProtocolError(CloseCode.UNEXPECTED_MESSAGE, f"Saved names {saved.save_id}, which was not asked for")
    if len(saved.position) > MAX_POSITION_BYTES:
        raise ProtocolError(
            CloseCode.MESSAGE_TOO_LARGE,
            f"a position has {len(saved.position)} bytes; at most {MAX_POSITION_BYTES} can be kept",
        )


def check_introduction(spec: BehaviorSpec, known: dict[str, BehaviorSpec]) -> None:
    """Raise ProtocolError unless a behavior can join those that the session knows already."""
    before = known.get(spec.name)
    if before is not None and before != spec:
        raise ProtocolError(CloseCode.SPEC_CONFLICT, conflict(before, spec))
    if before is None and len(known) >= MAX_BEHAVIORS:
        raise ProtocolError(CloseCode.BAD_SPEC, f"a simulator can have at most {MAX_BEHAVIORS} behaviors")


def decision_pending(agent: int) -> ProtocolError:
    """The error of an agent that asks while it waits."""
    return ProtocolError(
        CloseCode.DECISION_PENDING, f"agent {agent} asks for a decision while its last one is unanswered"
    )


def too_many_unadmitted() -> ProtocolError:
    """The error of a behavior with too many steps before its first answer."""
    return ProtocolError(
        CloseCode.DECISION_PENDING, f"more than {MAX_UNADMITTED_STEPS} steps came before the first answer"
    )


def too_many_agents() -> ProtocolError:
    """The error of a session with too many agents."""
    return ProtocolError(CloseCode.TOO_MANY_AGENTS, f"more than {MAX_AGENTS} agents of one behavior")


def hello_missing() -> ProtocolError:
    """The error of another message than Hello before Hello."""
    return ProtocolError(CloseCode.STEP_BEFORE_HELLO, "the first message of a stream must be Hello")


def hello_timeout() -> ProtocolError:
    """The error of a stream without Hello in time."""
    return ProtocolError(CloseCode.HELLO_TIMEOUT, f"no Hello within {HELLO_SECONDS:.0f} s")


def step_timeout(seconds: float) -> ProtocolError:
    """The error of a client that does not send its next step in time."""
    return ProtocolError(
        CloseCode.STEP_TIMEOUT,
        f"nothing came for {seconds:.0f} s after actions were sent; where a step or a reset takes longer, raise "
        "simulators.step_timeout_seconds in the run's configuration",
    )


def conflict(known: BehaviorSpec, announced: BehaviorSpec) -> str:
    """Return the difference of two specs of one behavior, in words."""
    return (
        f"behavior {announced.behavior!r} was announced with {_described(announced)}, "
        f"but the run uses {_described(known)}; all simulators of a run must agree"
    )


def same_spec(one: BehaviorSpec, other: BehaviorSpec) -> bool:
    """Whether two specs agree; the teams in their names don't matter."""
    return replace(one, name=other.name) == other


def _described(spec: BehaviorSpec) -> str:
    observations = ", ".join(f"{item.dtype} {item.shape}" for item in spec.observations)
    actions = spec.actions
    return (
        f"observations [{observations}], {actions.continuous_size} continuous actions and "
        f"discrete branches {actions.discrete_branches}"
    )
