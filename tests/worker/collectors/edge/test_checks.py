"""The checks of what edge collectors send: each rule lets through what keeps it, and refuses what does not."""

import io
import zipfile
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from ludus.collector import commands, messages
from ludus.collector.arena import Arena
from ludus.collector.channel import Frame
from ludus.collector.messages import EPISODE_DTYPE, Kind, Message
from ludus.collector.snapshots.state import MAX_BYTES, pack
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from tests.worker.collectors.edge.segments import BLOCK, NUMBER, good
from worker.collectors.edge.checks import (
    QuotaCheck,
    Violation,
    check_columns,
    check_episodes,
    check_records,
    check_snapshot,
    read_message,
    records_of,
)

SPEC = BehaviorSpec("Walker", (ObservationSpec((3,)), ObservationSpec((2, 4, 4), dtype="uint8")), ActionSpec(2, (3, 2)))
HORIZON = 16
ROW = BLOCK * 65
SUCCESSOR = ROW + 3


@pytest.fixture
def arena() -> Iterator[Arena]:
    """An arena whose rows are those of a good segment, acted by version 1."""
    made = Arena.create(SPEC, 100, memory_size=4)
    made.versions[:] = 1
    yield made
    made.close()


def test_a_good_segment_passes(arena: Arena) -> None:
    check_records(good(), arena, HORIZON, {NUMBER})
    check_columns(arena, good(), newest_version=1)


@pytest.mark.parametrize(
    "fields",
    [{"simulator": 7}, {"length": 0}, {"length": 17}, {"blocks": 2}, {"ending": 9}, {"sequence": -1}, {"episode": -1}],
    ids=str,
)
def test_a_record_that_cannot_be_is_refused(arena: Arena, fields: dict[str, int]) -> None:
    with pytest.raises(Violation):
        check_records(good(**fields), arena, HORIZON, {NUMBER})


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["continuous", "log_probs", "rewards", "group_rewards", "memories"])
def test_a_number_that_is_not_finite_is_refused(arena: Arena, name: str, value: float) -> None:
    getattr(arena, name)[ROW] = value

    with pytest.raises(Violation, match=name):
        check_columns(arena, good(), newest_version=1)


@pytest.mark.parametrize("row", [ROW, SUCCESSOR], ids=["step", "successor"])
def test_an_observation_that_is_not_finite_is_refused(arena: Arena, row: int) -> None:
    arena.observations[0][row, 1] = np.nan

    with pytest.raises(Violation, match="observation 0"):
        check_columns(arena, good(), newest_version=1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("discrete", (3, 0)),
        ("discrete", (0, 2)),
        ("discrete", (-1, 0)),
        ("action_masks", 2),
        ("versions", 2),
        ("versions", -1),
    ],
    ids=str,
)
def test_a_value_out_of_its_range_is_refused(arena: Arena, name: str, value: object) -> None:
    getattr(arena, name)[ROW] = value

    with pytest.raises(Violation):
        check_columns(arena, good(), newest_version=1)


def test_rows_of_other_segments_are_not_looked_at(arena: Arena) -> None:
    arena.rewards[ROW + 3] = np.nan

    check_columns(arena, good(), newest_version=1)


@pytest.mark.parametrize("size", [0, 1, 47])
def test_bytes_that_are_no_records_are_refused(size: int) -> None:
    with pytest.raises(Violation):
        records_of(memoryview(bytes(size)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("return", np.nan),
        ("group_return", np.inf),
        ("length", 0),
        ("outcome", 9),
        ("closed", -1),
        ("simulator", NUMBER + 1),
        ("version", 4),
    ],
)
def test_an_episode_that_cannot_be_is_refused(name: str, value: float) -> None:
    records = np.zeros(2, EPISODE_DTYPE)
    records["length"] = 5
    check_episodes(memoryview(records.tobytes()), {NUMBER}, newest_version=3)
    records[1][name] = value

    with pytest.raises(Violation):
        check_episodes(memoryview(records.tobytes()), {NUMBER}, newest_version=3)


@pytest.mark.parametrize(
    "payload",
    [
        b"no archive",
        pack({"lanes": {}}),
        pack({"lanes": 1, "sessions": []}),
        pack({"lanes": {}, "sessions": [{}]}),
    ],
    ids=["no archive", "no sessions", "no runners", "a session without an id"],
)
def test_a_snapshot_that_cannot_be_is_refused(payload: bytes) -> None:
    check_snapshot(pack({"lanes": {}, "sessions": [{"session_id": "one", "number": 3}]}))

    with pytest.raises(Violation):
        check_snapshot(payload)


@pytest.mark.long
def test_a_small_archive_that_unpacks_to_more_than_a_snapshot_may_have_is_refused() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("tree.npy", "w") as entry:
        for _ in range(MAX_BYTES // (1 << 20) + 1):
            entry.write(bytes(1 << 20))

    with pytest.raises(Violation):
        check_snapshot(file.getvalue())


def test_a_quota_takes_what_was_granted_and_a_little_in_advance() -> None:
    quota = QuotaCheck()
    with pytest.raises(Violation, match="not granted"):
        quota.deliver(good())
    quota.grant(0, 2_000, 2_000)
    for _ in range((2_000 + 8 * 2_000) // 16):
        quota.deliver(good(16))

    with pytest.raises(Violation, match="were granted"):
        quota.deliver(good(16))


def test_rounds_that_are_not_cut_may_each_have_a_little_more_than_was_granted() -> None:
    quota = QuotaCheck()
    for number in range(100):
        quota.grant(number, 2_000, 2_000, is_cut=False)
        for _ in range(2 * 2_000 // 16):
            quota.deliver(good(16, round=number))

    for _ in range((7 * 2_000) // 16):
        quota.deliver(good(16, round=99))
    with pytest.raises(Violation, match="were granted"):
        quota.deliver(good(16, round=99))


@pytest.mark.parametrize("number", [-1, 5_000])
def test_a_round_that_was_not_granted_is_refused(number: int) -> None:
    quota = QuotaCheck()
    quota.grant(0, 2_000, 2_000)

    with pytest.raises(Violation, match="not granted"):
        quota.deliver(good(round=number))


def frame_of(message: Message) -> Frame:
    return Frame(Kind.MESSAGE, message.pack())


BEHAVIOR = messages.BehaviorAnnounced(SPEC)


@pytest.mark.parametrize(
    "message",
    [
        BEHAVIOR,
        messages.SimulatorConnected("sim-1", 3, 0, "peer", "client", ("Walker",)),
        messages.QuotaProgress(0, 1, 2, used=True),
        messages.Stats((messages.StatsReported("speed", messages.Aggregation.AVERAGE, 2, 1.5, 1.0, (0.5, 1.0)),)),
        messages.MatchesEnded(
            "Walker", (messages.EndedMatch(1, 0, messages.Outcome.WIN, False, True, (("Walker", 1, 7),)),)
        ),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_of_a_collector_is_read_as_it_was_sent(message: Message) -> None:
    assert read_message(frame_of(message)) == message


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (Frame(Kind.MESSAGE, b"no message"), "malformed_message"),
        (Frame(Kind.MESSAGE, b"Alive\n[1]"), "malformed_message"),
        (Frame(Kind.MESSAGE, b"\xff\xfe\n{}"), "malformed_message"),
        (frame_of(commands.Release()), "unexpected_message"),
        (frame_of(messages.StepsPlayed("Walker", "many")), "malformed_message"),  # type: ignore[arg-type]
        (frame_of(messages.QuotaProgress(0, 1, 2, used="yes")), "malformed_message"),  # type: ignore[arg-type]
        (frame_of(messages.QuotaProgress(0, 1, 2**70, used=True)), "malformed_message"),
        (frame_of(messages.SimulatorStarted("no session id!", (), 1)), "bad_session_id"),
        (frame_of(messages.SimulatorConnected("one", 1, 0, "", "x" * 5_000, ())), "malformed_message"),
        (frame_of(messages.BehaviorAnnounced(replace(SPEC, observations=()))), "bad_spec"),
        (frame_of(messages.BehaviorAnnounced(replace(SPEC, actions=ActionSpec(-1)))), "bad_spec"),
        (
            frame_of(messages.BehaviorAnnounced(replace(SPEC, observations=(ObservationSpec((3,), dtype="f8"),)))),  # type: ignore[arg-type]
            "bad_spec",
        ),
    ],
)
def test_what_is_no_message_of_a_collector_is_refused(frame: Frame, code: str) -> None:
    with pytest.raises(Violation) as caught:
        read_message(frame)

    assert caught.value.code == code


@pytest.mark.parametrize(
    "counts",
    [{"steps": 2**61}, {"steps": -1}, {"episodes": 2**31}, {"episodes": 1, "won": 2}, {"won": -1}],
    ids=["too many steps", "steps below 0", "too many episodes", "more won than ended", "wins below 0"],
)
def test_steps_that_no_column_holds_and_more_wins_than_episodes_are_refused(counts: dict[str, int]) -> None:
    most = messages.StepsPlayed("Walker", 2**31 - 1, 2**31 - 1, 2**31 - 1)
    assert read_message(frame_of(most)) == most

    with pytest.raises(Violation, match="steps or episodes"):
        read_message(frame_of(messages.StepsPlayed("Walker", **{"steps": 1, **counts})))


TIMES = messages.TimesMeasured(0, 1.0, 0.5, 0.0, 0.0, 0.0, 0.0, (messages.SimulatorTimes(1, 2, 0.5, 0.1, 0.01, 0.0),))


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["busy", "seconds", "away", "game"])
def test_a_time_that_cannot_be_is_refused(name: str, value: float) -> None:
    (simulator,) = TIMES.simulators
    wrong = {"simulators": (replace(simulator, **{name: value}),)} if hasattr(simulator, name) else {name: value}

    assert read_message(Frame(Kind.MESSAGE, TIMES.pack())) == TIMES
    with pytest.raises(Violation):
        read_message(Frame(Kind.MESSAGE, replace(TIMES, **wrong).pack()))
