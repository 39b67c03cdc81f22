"""Whole attempts that are changed, saved and paused on the way: real collectors, a real learner, games of the SDK."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ludus.sdk import (
    Actions,
    ActionSpec,
    BehaviorSpec,
    ObservationSpec,
    ResetInfo,
    Simulation,
    SimulatorError,
    StepBuilder,
    connect,
)
from server.runs.amendments.repository import AmendmentRef
from tests.worker.trainer.test_environment_parameters import Graded
from worker.trainer import checkpoint
from worker.trainer.checkpoint import AMENDMENTS
from worker.trainer.loop import Trainer
from worker.trainer.messages import (
    Amend,
    Amended,
    CheckpointCommitted,
    CheckpointDeclined,
    CheckpointWritten,
    Command,
    Finished,
    Job,
    Listening,
    Message,
    Metrics,
    Order,
    SaveCheckpoint,
)

RATE, STEPS = "behaviors.Pupil.hyperparameters.learning_rate", "behaviors.Pupil.max_steps"


class Leisurely(Graded):
    """Takes its time, so that a checkpoint is written, and answered, before the next ones."""

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        time.sleep(0.005)  # allow: sleep, because this game takes its time
        super().step(builder, actions)


class Supervisor:
    """Lets a game play where the trainer listens, acknowledges checkpoints, and wants things at some of them."""

    def __init__(self, **wishes: list[Order]) -> None:
        """`wishes`: what it wants when the trainer has written its n-th checkpoint, `at_n`; `first`: at once."""
        self.told: list[Message] = []
        self.game: Simulation = Leisurely()
        self._orders: list[Order] = wishes.pop("first", [])
        self._wishes = wishes
        self._thread: threading.Thread | None = None

    def post(self, message: Message) -> None:
        self.told.append(message)
        if isinstance(message, CheckpointWritten):
            self._orders.append(CheckpointCommitted(folder=message.folder))
            self._orders += self._wishes.pop(f"at_{len(self.of(CheckpointWritten))}", [])
        if isinstance(message, Listening) and self._thread is None:
            self._thread = threading.Thread(target=self._play, args=(message.endpoints[0].address,))
            self._thread.start()

    def commands(self) -> list[Order]:
        taken, self._orders = self._orders, []
        return taken

    def of(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.told if isinstance(message, kind)]

    def points(self, key: str) -> dict[int, float]:
        return {point.step: point.value for one in self.of(Metrics) for point in one.points if point.key == key}

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join(20)
        assert not self._thread.is_alive()

    def _play(self, address: str) -> None:
        with suppress(SimulatorError):
            connect(self.game, run="alone", server=address, connect_timeout_seconds=0.1)


def attempt(
    scratch: Path,
    supervisor: Supervisor,
    *,
    amendments: list[AmendmentRef] | None = None,
    resume: Path | None = None,
    changed: Callable[[dict[str, Any]], None] = lambda _: None,
    behaviors: dict[str, int] | None = None,
) -> Finished:
    """Run an attempt to its end. `behaviors`: the `max_steps` of each, where it is not the one pupil."""
    pupil: dict[str, Any] = {
        "hyperparameters": {"batch_size": 32, "num_epoch": 1, "buffer_size": 64, "learning_rate_schedule": "constant"},
        "network_settings": {"hidden_units": 8, "num_layers": 1},
        "max_steps": 512,
        "summary_freq": 64,
        "checkpoint_interval": 128,
    }
    changed(pupil)
    trained = {"Pupil": {}} if behaviors is None else {name: {"max_steps": end} for name, end in behaviors.items()}
    config: dict[str, Any] = {
        "torch_settings": {"device": "cpu"},
        "behaviors": {name: {**pupil, **steps} for name, steps in trained.items()},
        "environment_parameters": {"difficulty": 1.0, "wind": 0.5},
    }
    job = Job(
        run_id="alone",
        attempt=1,
        config=config,
        amendments=amendments or [],
        seed=1,
        scratch=str(scratch),
        resume_from=None if resume is None else str(resume),
    )
    finished = Trainer(job, supervisor, []).run()
    supervisor.join()
    return finished


def change(seq: int, path: str, old: object, new: object) -> AmendmentRef:
    return AmendmentRef(seq, ({"path": path, "old": old, "new": new},))


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_run_goes_on_with_what_was_changed_and_so_does_its_successor(tmp_path: Path) -> None:
    slower, shorter = change(1, RATE, 3e-4, 1e-5), change(2, STEPS, 512, 448)
    first = Supervisor(at_1=[Amend(amendments=[slower]), Amend(amendments=[slower, shorter])])

    finished = attempt(tmp_path / "first", first)

    assert (finished.outcome, finished.reason) == ("succeeded", "completed")
    assert [each.amendment.seq for each in first.of(Amended)] == [1, 2], "each once"
    (step,) = {each.step for each in first.of(Amended)}
    assert step % 64 == 0, "between two updates"
    last = first.of(CheckpointWritten)[-1]
    assert last.step == 448
    rates = first.points("Policy/Learning Rate")
    assert rates[step] == pytest.approx(3e-4), "a point tells of the update before it"
    assert rates[448] == pytest.approx(1e-5)
    assert checkpoint.load(Path(last.folder))[AMENDMENTS] == {"made": 2}
    before = first.of(CheckpointWritten)[0]
    assert AMENDMENTS not in checkpoint.load(Path(before.folder)), "older releases read what was never changed"

    # The worker dies; another one goes on from a checkpoint, and meanwhile a third change has come.
    middle = next(each for each in first.of(CheckpointWritten) if AMENDMENTS in checkpoint.load(Path(each.folder)))
    assert middle.step < 448
    longer = change(3, STEPS, 448, 512)
    second = Supervisor()

    def as_it_is_by_now(pupil: dict[str, Any]) -> None:
        pupil["hyperparameters"]["learning_rate"], pupil["max_steps"] = 1e-5, 512

    attempt(
        tmp_path / "second",
        second,
        amendments=[slower, shorter, longer],
        resume=Path(middle.folder),
        changed=as_it_is_by_now,
    )

    assert [(each.amendment.seq, each.step) for each in second.of(Amended)] == [(3, middle.step)], "the others it knows"
    assert second.of(CheckpointWritten)[-1].step == 512
    assert set(second.points("Policy/Learning Rate").values()) == {1e-5}


@pytest.mark.timeout(240)
def test_a_checkpoint_on_request_and_then_a_pause(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    supervisor = Supervisor(
        first=[SaveCheckpoint(request=1)], at_2=[SaveCheckpoint(request=2)], at_3=[Command(action="pause")]
    )

    finished = attempt(tmp_path, supervisor)

    assert (finished.outcome, finished.reason) == ("paused", "user")
    written = supervisor.of(CheckpointWritten)
    assert [(each.reason, each.request) for each in written[:3]] == [
        ("requested", 1),  # nothing was learned when it was asked for: it waited for the behavior, and no longer
        ("interval", None),
        ("requested", 2),
    ]
    assert written[0].step < 128
    assert written[1].step % 64 == 0
    assert written[2].step % 64 == 0, "between two updates; the one before was written while the run went on"
    assert (written[-1].reason, len(written)) == ("requested", 4), "the pause has one of its own"
    assert supervisor.of(CheckpointDeclined) == []
    assert "the server closed the session: paused on request; trying again" in caplog.text


class Pair(Simulation):
    """Two behaviors, whose agents play on for ever."""

    behaviors = tuple(
        BehaviorSpec(name, (ObservationSpec((1,)),), ActionSpec(discrete_branches=(2,))) for name in ("Short", "Long")
    )

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        for agent, spec in enumerate(self.behaviors):
            builder.request_decision(agent, [0.0], behavior=spec.name)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        for action in actions:
            builder.request_decision(action.agent, [0.0], 1.0, behavior=action.behavior)


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_behavior_that_had_ended_learns_on_in_a_new_attempt(tmp_path: Path) -> None:
    further = change(1, "behaviors.Short.max_steps", 64, 256)
    first = Supervisor(at_2=[Amend(amendments=[further])])
    first.game = Pair()

    finished = attempt(tmp_path / "first", first, behaviors={"Short": 64, "Long": 1_000_000})

    assert finished.outcome == "released", "handed back, and no failure"
    assert finished.detail == "Short had ended and is to learn on, which takes a new attempt"
    last = first.of(CheckpointWritten)[-1]
    assert last.steps["Short"] == 64
    assert last.steps["Long"] > 64

    second = Supervisor()
    second.game = Pair()
    ended = attempt(
        tmp_path / "second",
        second,
        amendments=[further],
        resume=Path(last.folder),
        behaviors={"Short": 256, "Long": last.steps["Long"] + 64},
    )

    assert (ended.outcome, ended.reason) == ("succeeded", "completed")
    assert second.of(CheckpointWritten)[-1].steps["Short"] == 256
    assert second.of(Amended) == [], "the checkpoint has it"
