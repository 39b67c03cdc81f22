"""Checks of what edge collectors send: they run on machines of strangers, and what they break ends with them.

A place that sends something else than its contract allows is closed with a named error; the learner and the other
places notice its end, nothing else.
"""

import io
import zipfile
from collections.abc import Mapping
from dataclasses import astuple, fields
from typing import Any, Final, get_type_hints

import numpy as np
import numpy.typing as npt

from ludus.collector import messages
from ludus.collector.arena import Arena
from ludus.collector.channel import Frame
from ludus.collector.messages import EPISODE_DTYPE, EndedMatch, Message
from ludus.collector.segments import SEGMENT_DTYPE, SegmentEnd, Segments
from ludus.collector.snapshots.state import MAX_BYTES, unpack
from ludus.protocol.batches import Outcome
from ludus.protocol.codes import ProtocolError
from ludus.protocol.contract import SESSION_ID
from ludus.protocol.specs import spec_to_message

OVERDRAFT_ROUNDS: Final = 8
"""Quotas that a collector may answer in advance, but at least `OVERDRAFT_STEPS`: a message is answered whole."""
OVERDRAFT_STEPS: Final = 10_000
MOST_ROUNDS_AHEAD: Final = 1_000
"""A round is no later than so many after the newest that was granted."""
MOST_NUMBER: Final = 2**31 - 1
"""The largest number of agents, simulators and teams, which have columns of 32 bits; and of steps and episodes in one
message, whose sums have columns of 64."""
MOST_TEXT: Final = 4_000
"""Characters of a text in a message."""
ALLOWED: Final[frozenset[type[Message]]] = frozenset(
    {
        messages.Introduction,
        messages.Alive,
        messages.Listening,
        messages.Failed,
        messages.BehaviorAnnounced,
        messages.SimulatorConnected,
        messages.SimulatorStarted,
        messages.SimulatorLeft,
        messages.SimulatorProblem,
        messages.Stats,
        messages.QuotaProgress,
        messages.CollectorLags,
        messages.TimesMeasured,
        messages.StepsPlayed,
        messages.MatchesEnded,
        messages.EvaluationEnded,
        messages.WeightsRead,
        messages.WantBlocks,
    }
)
"""Messages of collectors; those of learners are none of theirs."""


class Violation(Exception):
    """An edge collector broke its contract. `code` is a stable name, the text says what was wrong."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def read_message(frame: Frame) -> Message:
    """Read a control message, each value of its declared type. Raises Violation."""
    try:
        message = messages.read(frame)
    except (ValueError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise Violation("malformed_message", f"a message cannot be read: {type(error).__name__}: {error}") from None
    if type(message) not in ALLOWED:
        raise Violation("unexpected_message", f"{type(message).__name__} is no message of a collector")
    _check_fields(message)
    match message:
        case messages.BehaviorAnnounced():
            try:
                spec_to_message(message.spec)  # which checks it
            except (ProtocolError, KeyError, ValueError) as error:
                raise Violation("bad_spec", str(error)) from None
        case messages.SimulatorConnected() | messages.SimulatorStarted():
            if SESSION_ID.fullmatch(message.session_id) is None:
                raise Violation("bad_session_id", f"{message.session_id[:80]!r} is no session id")
            if isinstance(message, messages.SimulatorStarted):
                _demand(
                    0 <= message.agents <= MOST_NUMBER, f"a simulator has no number of agents in 0 to {MOST_NUMBER}"
                )
        case messages.SimulatorLeft() | messages.SimulatorProblem():
            _demand(-1 <= message.number <= MOST_NUMBER, f"{message.number} is no simulator's number")
        case messages.Stats():
            _demand(all(statistic.count >= 1 for statistic in message.stats), "a statistic has no values")
        case messages.StepsPlayed():
            fits = 0 <= message.steps <= MOST_NUMBER and 0 <= message.won <= message.episodes <= MOST_NUMBER
            _demand(fits, f"a number of steps or episodes is not in 0 to {MOST_NUMBER}, or more were won than ended")
        case messages.TimesMeasured():
            values = [*astuple(message), *(value for simulator in message.simulators for value in astuple(simulator))]
            _demand(all(value >= 0 for value in values if isinstance(value, float)), "a measured time is below 0")
        case _:
            pass
    return message


def _check_fields(record: Any) -> None:
    hints = get_type_hints(type(record))
    for field in fields(record):
        _check_value(getattr(record, field.name), hints[field.name], f"{type(record).__name__}.{field.name}")


def _check_value(value: Any, hint: Any, where: str) -> None:
    """Check the plain values of a message; classes of their own were built from plain values by `read_record`."""
    if hint is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))
    elif hint is int:
        fits = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**62
    elif hint in {bool, str}:
        fits = isinstance(value, hint) and (hint is bool or len(value) <= MOST_TEXT)
    elif isinstance(value, tuple):
        of = getattr(hint, "__args__", (Any,))
        for index, item in enumerate(value):
            _check_value(item, of[0] if len(of) == 1 or of[-1] is Ellipsis else of[index], where)
        return
    elif hasattr(type(value), "__dataclass_fields__"):
        _check_fields(value)
        return
    else:
        fits = not isinstance(value, Mapping | list)
    if not fits:
        raise Violation("malformed_message", f"{where} is {str(value)[:80]!r}, not {getattr(hint, '__name__', hint)}")


class QuotaCheck:
    """The steps of one runner that a place may deliver."""

    def __init__(self) -> None:
        self._granted = 0
        self._largest = 0
        self._delivered = 0
        self._first_round: int | None = None
        self._newest_round = 0

    def grant(self, number: int, steps: int, size: int, *, is_cut: bool = True) -> None:
        """Record a grant; a round that is not cut may have had more steps than were granted."""
        if self._first_round is None:
            self._first_round = number
        if not is_cut and number > self._newest_round:
            self._granted = max(self._granted, self._delivered)
        self._newest_round = max(self._newest_round, number)
        self._granted += steps
        self._largest = max(self._largest, size, steps)

    def deliver(self, segments: Segments) -> None:
        """Count delivered steps. Raises Violation if they exceed the granted steps."""
        rounds = segments.records["round"]
        latest = self._newest_round + MOST_ROUNDS_AHEAD
        if self._first_round is None or int(rounds.min()) < self._first_round or int(rounds.max()) > latest:
            raise Violation("round_not_granted", f"steps of round {int(rounds.max())} came, which was not granted")
        self._delivered += segments.steps
        if self._delivered > self._granted + max(OVERDRAFT_ROUNDS * self._largest, OVERDRAFT_STEPS):
            raise Violation(
                "too_many_steps", f"{self._delivered:,} steps came, {self._granted:,} were granted in all rounds"
            )


def check_records(segments: Segments, arena: Arena, horizon: int, numbers: frozenset[int] | set[int]) -> None:
    """Check the records of segments, whose blocks are not chosen yet. Raises Violation."""
    records, rows = segments.records, arena.layout.rows
    length = records["length"]
    _demand(len(records) > 0, "a delivery without a segment")
    _demand(bool(((length >= 1) & (length <= horizon)).all()), f"a segment has no length from 1 to {horizon}")
    _demand(bool((records["blocks"] == -(-length // rows)).all()), "a segment's number of blocks fits not its length")
    _demand(bool(np.isin(records["ending"], [end.value for end in SegmentEnd]).all()), "a segment ends in no known way")
    _demand(bool((records["sequence"] >= 0).all() and (records["episode"] >= 0).all()), "a segment counts below 0")
    _demand({*records["simulator"].tolist()} <= numbers, "a segment is of a simulator that did not connect here")


def check_columns(arena: Arena, segments: Segments, newest_version: int) -> None:
    """Check the rows of segments that were just written. Raises Violation: then their blocks are not delivered."""
    rows = arena.rows_of(segments)
    successors = arena.successor_rows_of(segments)
    for index, column in enumerate(arena.observations):
        if column.dtype.kind == "f":
            finite = np.isfinite(column[rows]).all() and np.isfinite(column[successors]).all()
            _demand(bool(finite), f"observation {index} has a value that is no finite number")
    for name in ("continuous", "log_probs", "rewards", "group_rewards", "memories"):
        _demand(bool(np.isfinite(getattr(arena, name)[rows]).all()), f"{name} has a value that is no finite number")
    choices = np.array(arena.layout.spec.actions.discrete_branches, np.int32)
    discrete: npt.NDArray[np.int32] = arena.discrete[rows].astype(np.int32, copy=False)
    _demand(bool(((discrete >= 0) & (discrete < choices)).all()), "a discrete action is none of its branch")
    masks: npt.NDArray[np.uint8] = arena.action_masks[rows].astype(np.uint8, copy=False)
    _demand(bool((masks <= 1).all()), "an action mask has a value that is neither 0 nor 1")
    versions: npt.NDArray[np.int64] = arena.versions[rows].astype(np.int64, copy=False)
    _demand(bool(((versions >= 0) & (versions <= newest_version)).all()), "a step names a version that was not sent")


def check_episodes(payload: memoryview, numbers: frozenset[int] | set[int], newest_version: int) -> None:
    """Check a frame of ended episodes of the simulators with these numbers. Raises Violation."""
    if not len(payload) or len(payload) % EPISODE_DTYPE.itemsize:
        raise Violation("malformed_message", f"{len(payload):,} bytes are no records of episodes")
    records = np.frombuffer(payload, EPISODE_DTYPE)
    finite = np.isfinite(records["return"]).all() and np.isfinite(records["group_return"]).all()
    _demand(bool(finite), "an episode's return is no finite number")
    _demand(bool((records["length"] >= 1).all()), "an episode has no step")
    _demand(bool(np.isin(records["outcome"], [0, *(outcome.value for outcome in Outcome)]).all()), "an outcome is none")
    _demand(bool((records["closed"] >= 0).all()), "an episode counts segments below 0")
    _demand({*records["simulator"].tolist()} <= numbers, "an episode is of a simulator that did not connect here")
    versions = records["version"]
    _demand(
        bool(((versions >= 0) & (versions <= newest_version)).all()), "an episode names a version that was not sent"
    )


def check_match(match: EndedMatch, numbers: frozenset[int] | set[int], *, opponents_known: bool) -> None:
    """Check a match. Raises Violation."""
    _demand(match.simulator in numbers, "a match is of a simulator that did not connect here")
    _demand(opponents_known, "a match names an opponent that was not sent")
    teams = [match.team, *(team for _, team, _ in match.opponents)]
    _demand(all(0 <= team <= MOST_NUMBER for team in teams), f"a team's number is not in 0 to {MOST_NUMBER}")


def check_snapshot(payload: bytes) -> None:
    """Check that a snapshot can be read, within its limit, and has what the learner looks at. Raises Violation."""
    try:
        with zipfile.ZipFile(io.BytesIO(payload)) as archive:
            size = sum(member.file_size for member in archive.infolist())
        state = unpack(payload) if size <= MAX_BYTES else {"lanes": None, "sessions": []}
        fits = all(
            isinstance(session["session_id"], str) and isinstance(session["number"], int)
            for session in state["sessions"]
        ) and all(
            isinstance(number, int) and isinstance(steps, int) and steps > 0
            for runner in state["lanes"].values()
            for number, steps in runner["advance"]
        )
    except Exception as error:  # noqa: BLE001  numpy raises errors of many kinds for what is no archive
        raise Violation("malformed_message", f"a snapshot cannot be read: {error}") from None
    if not fits:
        raise Violation("malformed_message", f"a snapshot lacks its parts, or has more than {MAX_BYTES:,} bytes")


def records_of(payload: memoryview) -> Segments:
    """Read the records of a delivery; their blocks are not chosen yet. Raises Violation."""
    if not len(payload) or len(payload) % SEGMENT_DTYPE.itemsize:
        raise Violation("malformed_message", f"{len(payload):,} bytes are no records of segments")
    return Segments(np.frombuffer(payload, SEGMENT_DTYPE).copy(), np.empty(0, np.int32))


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Violation("bad_experience", otherwise)
