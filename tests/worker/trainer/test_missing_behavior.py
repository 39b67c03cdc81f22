"""A run whose simulators bring only some of its behaviors says so, and pauses."""

import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from ludus.sdk import SimulatorError, connect
from tests.waiting import eventually
from tests.worker.trainer.attempts import Listener, Run
from tests.worker.trainer.test_turn_based import NETWORK, TRAINERS, Board
from worker.trainer.loop import Trainer
from worker.trainer.messages import CheckpointWritten, Command, EventRecord, Finished, Message

MAX_STEPS = 64
SECTION = {
    "trainer_type": "ppo",
    "hyperparameters": TRAINERS["ppo"],
    "network_settings": NETWORK,
    "max_steps": MAX_STEPS,
    "time_horizon": 8,
}
CONFIG = {"behaviors": {"Black": SECTION, "White": SECTION}}
WAITS = "No simulator plays White; all else has been learned. The run waits for one that does, "


class Stopper(Listener):
    """Wants the run to stop when it hears of an event."""

    def __init__(self, event: str = "behavior_missing") -> None:
        super().__init__()
        self._event = event

    def post(self, message: Message) -> None:
        super().post(message)
        if isinstance(message, EventRecord) and message.name == self._event:
            self._inbox.append(Command(action="stop"))


def end_of(folder: Path, listener: Listener, players: tuple[str, ...], grace: float | None) -> Finished:
    """Train until the end with one simulator, in which these behaviors move in turn."""
    run = Run({**CONFIG, "simulators": {"startup_grace_seconds": grace}}, folder)

    def listens() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", run.port)):
            return True
        return False

    def play() -> None:
        eventually(listens, "the trainer listens")  # which takes longer than patience on a busy machine
        with suppress(SimulatorError):  # a run that has paused is waited for in vain
            connect(Board(players, 1), run="run", server=f"127.0.0.1:{run.port}", connect_timeout_seconds=1.0)

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    finished = Trainer(run.job(), listener, []).run()
    thread.join(20)
    return finished


@pytest.mark.long
def test_a_run_pauses_when_no_simulator_plays_the_last_behavior_within_the_startup_grace(tmp_path: Path) -> None:
    listener = Listener()

    finished = end_of(tmp_path, listener, ("Black",), 3.0)

    assert (finished.outcome, finished.reason) == ("paused", "behavior_missing")
    assert finished.detail == (
        "no simulator has played White for 3 s (simulators.startup_grace_seconds), and all else has been learned; "
        "resume the run (`ludus run resume run`) and start a simulator that plays it, or end it with what it has "
        "learned: `ludus run stop run`"
    )
    (event,) = [event for event in listener.events if event.name == "behavior_missing"]
    assert event.message == f"{WAITS}for 3 s, and then pauses (simulators.startup_grace_seconds)"
    assert event.data == {"behaviors": ["White"]}
    written = [message for message in listener.told if isinstance(message, CheckpointWritten)]
    assert written[-1].steps == {"Black": MAX_STEPS}, "what was learned is kept"


def test_a_run_whose_startup_grace_is_null_says_that_it_waits_without_limit(tmp_path: Path) -> None:
    listener = Stopper()

    finished = end_of(tmp_path, listener, ("Black",), None)

    assert (finished.outcome, finished.reason) == ("succeeded", "user")
    (event,) = [event for event in listener.events if event.name == "behavior_missing"]
    assert event.message == f"{WAITS}without limit (simulators.startup_grace_seconds)"


def test_a_run_that_is_stopped_after_its_games_were_refused_has_failed_and_names_the_refusal(tmp_path: Path) -> None:
    listener = Stopper("behavior_refused")

    finished = end_of(tmp_path, listener, ("Red",), 600.0)

    assert (finished.outcome, finished.reason) == ("failed", "behavior_refused")
    assert finished.detail == (
        "stopped on request before any behavior was trained: the run's configuration has no behavior 'Red', only: "
        "Black, White"
    )
    assert "behavior_missing" not in {event.name for event in listener.events}, "nothing has been learned"


@pytest.mark.long
def test_a_run_that_continues_another_one_and_is_stopped_after_its_games_were_refused_has_failed(
    tmp_path: Path,
) -> None:
    first, listener = Listener(), Stopper("behavior_refused")
    end_of(tmp_path / "first", first, ("Black", "White"), 600.0)
    name = "ckpt_" + "0" * 26
    run = Run({**CONFIG, "checkpoint_settings": {"resume_from": name}}, tmp_path / "second")
    trainer = Trainer(run.job().model_copy(update={"checkpoints": {name: str(first.folders[-1])}}), listener, [])
    trainer._registry.register(Board(("Red",), 1).behaviors[0])

    finished = trainer._apply_commands()

    trainer._attempt.pool.close("collector_closing", "the test is over", rejoin=False)
    assert finished is not None
    assert (finished.outcome, finished.reason) == ("failed", "behavior_refused")


def test_a_run_that_has_trained_is_stopped_as_ever_though_another_game_was_refused(tmp_path: Path) -> None:
    listener = Stopper("behavior_refused")
    run = Run({**CONFIG, "simulators": {"startup_grace_seconds": 600.0}}, tmp_path)
    (spec, other) = (behavior for board in (Board(("Black",), 1), Board(("Red",), 1)) for behavior in board.behaviors)
    trainer = Trainer(run.job(), listener, [])
    for each in (spec, other):
        trainer._registry.register(each)

    finished = trainer._apply_commands()

    trainer._attempt.pool.close("collector_closing", "the test is over", rejoin=False)
    assert finished is not None
    assert (finished.outcome, finished.reason) == ("succeeded", "user")


def test_a_run_whose_behaviors_are_all_played_misses_none(tmp_path: Path) -> None:
    listener = Listener()

    finished = end_of(tmp_path, listener, ("Black", "White"), 600.0)

    assert (finished.outcome, finished.reason) == ("succeeded", "completed")
    assert "behavior_missing" not in {event.name for event in listener.events}
