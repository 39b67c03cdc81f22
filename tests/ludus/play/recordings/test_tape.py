"""The flight recorder: what a session sent and got is kept as it was on the wire, within its limits."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ludus.config.recording import RecordConfig
from ludus.play.recordings.file import PART, Direction, Frame, Recording, summarize
from ludus.play.recordings.tape import (
    BACKLOG_BYTES,
    CHUNK_BYTES,
    MOST_ERRORS,
    RING_BYTES,
    RING_SECONDS,
    FlightRecorder,
    Sink,
    folder_sink,
)

GOT, SENT = Direction.RECEIVED, Direction.SENT
FAULT = ("not_finite", "an observation is NaN")


class Clock:
    """A clock that tests turn."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


class Game:
    """A session as its tape sees it."""

    carrier = "native"

    def __init__(self, number: int = 0, session_id: str = "game") -> None:
        self.session_id = session_id
        self.number = number
        self.closed: tuple[str, str] | None = None
        self.specs = {"Walker": None}


class Recorder:
    """A recorder with its clock and its files."""

    def __init__(self, folder: Path, record: RecordConfig | None = None, sink: Sink | None = None) -> None:
        self.clock = Clock()
        self.folder = folder
        self.flights = FlightRecorder(
            record,
            run=("run_1", 1, 7),
            prefix="0-0-",
            now=self.clock,
            wall_clock=lambda: 5000.0,
            sink=sink or folder_sink(folder, "0-"),
        )

    def end(self, game: Game, tape: object, code: str = "left", reason: str = "") -> None:
        game.closed = (code, reason)
        self.flights.ended(tape)  # type: ignore[arg-type]

    def files(self) -> list[Path]:
        """Return the recordings, once all are written."""
        self.flights.close()
        return sorted(self.folder.glob("*.ludusrec"))


def frames_of(file: Path) -> list[Frame]:
    with file.open("rb") as opened:
        return list(Recording(opened).frames())


def messages_of(file: Path) -> list[tuple[int, bytes]]:
    return [(frame.direction, frame.data) for frame in frames_of(file)]


@pytest.mark.parametrize("code", ["not_finite", "disconnected", "step_timeout", "internal_error", "run_failed"])
def test_the_last_seconds_before_an_error_are_kept_without_asking(tmp_path: Path, code: str) -> None:
    recorder, game = Recorder(tmp_path), Game()
    tape = recorder.flights.open(game)
    for second in range(40):
        recorder.clock.seconds = 1000.0 + second
        tape.take(GOT, b"%d" % second)

    recorder.end(game, tape, code, "why")

    (file,) = recorder.files()
    summary = summarize(file)
    assert [frame.data for frame in frames_of(file)] == [b"%d" % second for second in range(9, 40)]
    assert (summary.end.cause, summary.end.code, summary.end.reason) == ("error", code, "why")
    assert (summary.seconds, summary.header.started_at) == (RING_SECONDS, 5000.0 - RING_SECONDS)
    assert (summary.header.run_id, summary.header.session_id, summary.header.carrier) == ("run_1", "game", "native")


@pytest.mark.parametrize("code", ["left", "run_finished", "run_paused", "superseded", "collector_closing"])
def test_nothing_is_kept_of_a_session_that_ends_in_good_order(tmp_path: Path, code: str) -> None:
    recorder, game = Recorder(tmp_path), Game()
    tape = recorder.flights.open(game)
    tape.take(GOT, b"a")

    recorder.end(game, tape, code)

    assert recorder.files() == []


def test_nothing_is_kept_of_a_stranger_that_was_never_welcomed(tmp_path: Path) -> None:
    recorder, game = Recorder(tmp_path, RecordConfig(share=1)), Game(number=-1)
    tape = recorder.flights.open(game)
    tape.take(GOT, b"garbage")
    recorder.flights.tick()

    recorder.end(game, tape, "bad_ticket", "no")

    assert recorder.files() == []


def test_a_ring_is_bounded_in_bytes_and_sessions_share_them(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    games = [Game(number, f"game-{number}") for number in range(4)]
    tapes = [recorder.flights.open(game) for game in games]
    for _ in range(20):
        for tape in tapes:
            tape.take(GOT, bytes(RING_BYTES // 16))

    for game, tape in zip(games, tapes, strict=True):
        recorder.end(game, tape, *FAULT)

    files = recorder.files()
    assert len(files) == 4
    assert all(len(frames_of(file)) == 3 for file in files)  # a quarter of the bytes each: three fit, with their extras


def test_a_game_that_fails_again_and_again_fills_no_disk(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    for number in range(MOST_ERRORS + 5):
        game = Game(number, f"game-{number}")
        tape = recorder.flights.open(game)
        tape.take(GOT, b"a")
        recorder.end(game, tape, *FAULT)

    assert len(recorder.files()) == MOST_ERRORS


def test_what_introduces_a_session_stays_when_the_ring_has_turned(tmp_path: Path) -> None:
    recorder, game = Recorder(tmp_path), Game()
    tape = recorder.flights.open(game)
    tape.take(GOT, b"hello with a ticket")
    tape.pin(b"hello")
    tape.take(SENT, b"welcome")
    tape.take(GOT, b"announce")
    tape.pin()
    recorder.clock.seconds += 100
    tape.take(GOT, b"step")

    recorder.end(game, tape, *FAULT)

    (file,) = recorder.files()
    assert messages_of(file) == [
        (GOT | Direction.BEFORE, b"hello"),
        (GOT | Direction.BEFORE, b"announce"),
        (GOT, b"step"),
    ]
    assert [frame.seconds for frame in frames_of(file)] == [-100.0, -100.0, 0.0]


def test_a_ticket_is_in_no_recording(tmp_path: Path) -> None:
    recorder, game = Recorder(tmp_path), Game()
    tape = recorder.flights.open(game)
    tape.take(GOT, b"hello with a ticket")
    tape.pin(b"hello")

    recorder.end(game, tape, *FAULT)

    assert [messages_of(file) for file in recorder.files()] == [[(GOT, b"hello")]]


def test_a_chosen_session_is_recorded_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    recorder, game = Recorder(tmp_path, RecordConfig(share=1)), Game()
    tape = recorder.flights.open(game)
    expected = []
    for second in range(100):
        recorder.clock.seconds += 1
        tape.take(second % 2, b"%d" % second)
        expected.append((second % 2, b"%d" % second))
        recorder.flights.tick()

    recorder.end(game, tape)

    (file,) = recorder.files()
    assert messages_of(file) == expected
    assert summarize(file).end.cause == "session"


def test_switched_on_in_the_middle_it_begins_with_what_the_ring_has(tmp_path: Path) -> None:
    recorder, game = Recorder(tmp_path), Game()
    tape = recorder.flights.open(game)
    tape.take(GOT, b"before")
    recorder.clock.seconds += 5

    recorder.flights.change(RecordConfig(share=1))
    recorder.flights.tick()
    tape.take(GOT, b"after")
    recorder.flights.change(RecordConfig(share=0))
    tape.take(GOT, b"later")

    recorder.end(game, tape)
    (file,) = recorder.files()
    assert messages_of(file) == [(GOT, b"before"), (GOT, b"after")]
    assert summarize(file).end.cause == "stopped"


def test_with_errors_switched_off_nothing_is_kept_and_a_later_recording_is_still_introduced(tmp_path: Path) -> None:
    recorder, game = Recorder(tmp_path, RecordConfig(errors=False)), Game()
    tape = recorder.flights.open(game)
    tape.take(GOT, b"hello with a ticket")
    tape.pin(b"hello")
    tape.take(GOT, b"step")

    recorder.flights.change(RecordConfig(share=1, errors=False))
    recorder.clock.seconds += 1
    recorder.flights.tick()
    tape.take(GOT, b"chosen")
    recorder.end(game, tape, *FAULT)

    other = Game(1, "other")
    recorder.flights.change(RecordConfig(errors=False))
    tape = recorder.flights.open(other)
    tape.take(GOT, b"a")
    recorder.end(other, tape, *FAULT)

    (file,) = recorder.files()
    assert messages_of(file) == [(GOT | Direction.BEFORE, b"hello"), (GOT, b"chosen")]


@pytest.mark.parametrize(("record", "messages"), [({"max_seconds": 5.0}, 7), ({"max_bytes": 1 << 16}, 2)])
def test_a_recording_is_bounded_in_time_and_bytes(tmp_path: Path, record: dict[str, float], messages: int) -> None:
    recorder, game = Recorder(tmp_path, RecordConfig(share=1, errors=False, **record)), Game()  # type: ignore[arg-type]
    tape = recorder.flights.open(game)
    for _ in range(20):
        recorder.flights.tick()
        tape.take(GOT, bytes(1 << 15))
        recorder.clock.seconds += 1

    recorder.end(game, tape)

    (file,) = recorder.files()
    assert len(frames_of(file)) <= messages
    assert summarize(file).end.cause == "limit"


def test_only_so_many_sessions_are_recorded_at_once_and_others_follow(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, RecordConfig(share=1, sessions=2, max_seconds=3))
    games = [Game(number, f"game-{number}") for number in range(5)]
    tapes = [recorder.flights.open(game) for game in games]

    busiest = 0
    for _ in range(40):
        recorder.flights.tick()
        busiest = max(busiest, sum(tape.file is not None for tape in tapes))
        for tape in tapes:
            tape.take(GOT, b"a")
        recorder.clock.seconds += 1

    assert busiest == 2
    assert len({summarize(file).header.session_id for file in recorder.files()}) == len(recorder.files()) == 5


def test_the_share_is_drawn_by_the_session_and_stays_with_it(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, RecordConfig(share=0.3, errors=False, sessions=1000))
    games = [Game(number, f"game-{number}") for number in range(1000)]
    tapes = [recorder.flights.open(game) for game in games]
    recorder.flights.tick()

    chosen = {game.session_id for game, tape in zip(games, tapes, strict=True) if tape.file is not None}

    assert 250 < len(chosen) < 350
    recorder.flights.change(RecordConfig(share=0.6, errors=False, sessions=1000))
    recorder.flights.tick()
    more = {game.session_id for game, tape in zip(games, tapes, strict=True) if tape.file is not None}
    assert chosen < more
    recorder.flights.close()


def test_a_disk_that_is_too_slow_ends_recordings_and_holds_nothing_up(tmp_path: Path) -> None:
    stuck = threading.Event()
    written: list[str] = []

    def sink(name: str, data: bytes, last: bool) -> None:
        stuck.wait(30)
        written.append(name)

    recorder, game = Recorder(tmp_path, RecordConfig(share=1, errors=False), sink), Game()
    tape = recorder.flights.open(game)
    recorder.flights.tick()

    for _ in range(BACKLOG_BYTES // CHUNK_BYTES + 10):
        tape.take(GOT, bytes(CHUNK_BYTES))

    assert tape.file is None
    stuck.set()
    recorder.flights.close()


def test_a_full_disk_costs_the_recording_and_nothing_else(tmp_path: Path) -> None:
    tries: list[str] = []

    def sink(name: str, data: bytes, last: bool) -> None:
        tries.append(name)
        raise OSError(28, "No space left on device")

    recorder = Recorder(tmp_path, RecordConfig(share=1), sink)
    for number in range(2):
        game = Game(number, f"game-{number}")
        tape = recorder.flights.open(game)
        recorder.flights.tick()
        for _ in range(3):
            tape.take(GOT, bytes(CHUNK_BYTES))
        recorder.end(game, tape)
        recorder.clock.seconds += 1
    recorder.flights.close()

    assert tries == ["0-0-1.ludusrec", "0-0-2.ludusrec"]  # one try for each file


def test_a_collector_that_begins_completes_what_its_former_process_has_left(tmp_path: Path) -> None:
    (tmp_path / f"0-0-1.ludusrec{PART}").write_bytes(b"mine")
    (tmp_path / f"1-0-1.ludusrec{PART}").write_bytes(b"another's")

    folder_sink(tmp_path, "0-")

    assert sorted(file.name for file in tmp_path.iterdir()) == ["0-0-1.ludusrec", f"1-0-1.ludusrec{PART}"]


def test_a_recorder_without_a_sink_keeps_nothing() -> None:
    recorder, game = FlightRecorder(RecordConfig(share=1)), Game()
    tape = recorder.open(game)
    takes: Callable[[int, bytes], None] = tape.take
    takes(GOT, b"a")
    recorder.tick()
    game.closed = FAULT
    recorder.ended(tape)
    recorder.close()

    assert tape.file is None
