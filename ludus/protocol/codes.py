"""Why a session ended: the codes of the `Close` message, one enumeration for server and clients.

The names are part of the protocol: they are never renamed, and `proto/README.md` repeats this table for people who
write clients in other languages (a test keeps the two in step).
"""

from enum import StrEnum
from typing import Final, Self

REJOIN: Final = True


class CloseCode(StrEnum):
    """Stable name of the reason why a session ended."""

    sentence: str
    """The meaning of the code, for people."""
    rejoin: bool
    """Whether joining again makes sense; the value of `Close.rejoin` unless the server knows better."""

    def __new__(cls, value: str, sentence: str = "", rejoin: bool = False) -> Self:
        """Make a member. (`CloseCode(name)` finds one: for that type checkers want defaults.)"""
        member = str.__new__(cls, value)
        member._value_ = value
        member.rejoin = rejoin
        member.sentence = sentence
        return member

    # The session cannot be opened.
    PROTOCOL_VERSION = "protocol_version", "The server does not speak the client's protocol version."
    BAD_HELLO = "bad_hello", "A field of Hello is missing or malformed."
    BAD_TICKET = "bad_ticket", "The ticket is no ticket of this installation, or of another session id."
    TICKET_EXPIRED = "ticket_expired", "The ticket has expired, or its attempt is over; join again.", REJOIN
    HELLO_TIMEOUT = "hello_timeout", "No Hello arrived in time after the stream was opened.", REJOIN
    SECOND_CALL_MISSING = "second_call_missing", "A Unity player introduced itself, and did not make its second call."
    NO_AGENTS = "no_agents", "A Unity player connected, and none of its agents ever asked for a decision."
    SUPERSEDED = "superseded", "A newer stream of the same session id took this one's place."
    SESSION_TAKEN = (
        "session_taken",
        "Another collector serves a simulator of this session id; join again when that has left.",
        REJOIN,
    )

    # The client broke the contract; nothing but this session is affected.
    MALFORMED_MESSAGE = "malformed_message", "A message is not a valid ConnectRequest."
    MESSAGE_TOO_LARGE = "message_too_large", "A message is larger than `max_message_bytes`."
    STEP_BEFORE_HELLO = "step_before_hello", "The first message of the stream was not Hello."
    UNEXPECTED_MESSAGE = "unexpected_message", "The message is not legal at this point, for instance a second Hello."
    STEP_ORDER = "step_order", "A `step_id` was not greater than the one before, or a `reset_id` was never issued."
    BAD_SPEC = "bad_spec", "A behavior's spec is malformed or exceeds a limit."
    SPEC_CONFLICT = "spec_conflict", "The spec contradicts the one that the run already uses for the behavior."
    BEHAVIOR_NOT_CONFIGURED = "behavior_not_configured", "The run's configuration has no such behavior."
    UNKNOWN_BEHAVIOR = "unknown_behavior", "A step names a behavior that was not announced."
    DUPLICATE_BEHAVIOR = "duplicate_behavior", "A step has two entries for one behavior."
    COLUMN_LENGTH = "column_length", "A column's length does not fit the number of agents."
    OBSERVATION_COUNT = "observation_count", "There are more or fewer observations than the spec has."
    OBSERVATION_SHAPE = "observation_shape", "An observation's shape, or its number of bytes, is not as announced."
    OBSERVATION_DTYPE = "observation_dtype", "An observation's element type is not as announced."
    NOT_FINITE = "not_finite", "An observation, reward or stat is NaN or infinite."
    DUPLICATE_AGENT = "duplicate_agent", "An agent id appears twice in one column."
    DECISION_PENDING = "decision_pending", "An agent asks for a decision while its last one is unanswered."
    ACTION_MASK = "action_mask", "An action mask holds other values than 0 and 1, or forbids a whole branch."
    BAD_VALUE = "bad_value", "A `truncated` flag, an outcome or a group id is out of its range."
    BAD_STAT = "bad_stat", "A stat has a malformed key, an unknown aggregation, or there are too many."
    BAD_SIDE_CHANNEL = (
        "bad_side_channel",
        "A Unity player's side channel is malformed, or one that only the trainer writes.",
    )
    TOO_MANY_AGENTS = "too_many_agents", "The simulator has more agents than the server accepts."

    # Liveness.
    STEP_TIMEOUT = "step_timeout", "Actions were sent, and nothing was received for `step_timeout_seconds`.", REJOIN

    # The run or its server goes away.
    RUN_FINISHED = "run_finished", "The run has ended: every behavior reached its `max_steps`, or it was stopped."
    RUN_CANCELLED = "run_cancelled", "The run was cancelled."
    RUN_FAILED = "run_failed", "The run has failed; its events say why."
    RUN_PAUSED = "run_paused", "The run was paused; join again and wait.", REJOIN
    RUN_MOVED = "run_moved", "This attempt of the run ends; another worker may go on with it.", REJOIN
    COLLECTOR_CLOSING = "collector_closing", "The collector is shutting down or being restarted.", REJOIN
    INTERNAL_ERROR = "internal_error", "The server made a mistake; its log has the details.", REJOIN


class ProtocolError(Exception):
    """A peer broke the contract. `code` goes to the wire as it is, `message` is a sentence for people.

    Raised by the codec and by the collector's session; it ends one session and nothing else.
    """

    def __init__(self, code: CloseCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
