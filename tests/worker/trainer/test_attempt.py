"""Whole attempts that are changed on the way, and that wait for simulators, or for behaviors that none plays."""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ludus.sdk import (
    Actions,
    ActionSpec,
    BehaviorSpec,
    ObservationSpec,
    ResetInfo,
    SessionRefused,
    Simulation,
    SimulatorError,
    StepBuilder,
    connect,
)
from server.runs.refs import AmendmentRef
from tests.waiting import eventually
from tests.worker.trainer.attempts import Listener, Run
from tests.worker.trainer.supervisor_port import Supervisor
from tests.worker.trainer.test_environment_parameters import Graded
from tests.worker.trainer.test_turn_based import NETWORK, TRAINERS, Board
from worker.trainer import checkpoint
from worker.trainer.checkpoint import AMENDMENTS
from worker.trainer.loop import Trainer
from worker.trainer.messages import (
    Amend,
    Amended,
    CheckpointDeclined,
    CheckpointWritten,
    Command,
    EventRecord,
    Finished,
    Job,
    Listening,
    Message,
    Order,
    SaveCheckpoint,
)

RATE, STEPS = "behaviors.Pupil.hyperparameters.learning_rate", "behaviors.Pupil.max_steps"


class Leisurely(Graded):
    """Takes its time, so that a checkpoint is written, and answered, before the next ones."""

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        time.sleep(0.005)  # allow: sleep, because this game takes its time
        super().step(builder, actions)


class AmendingSupervisor(Supervisor):
    """Wants things when checkpoints are written."""

    def __init__(self, game: Simulation | None = None, **wishes: list[Order]) -> None:
        """`wishes`: what it wants when the trainer has written its n-th checkpoint, `at_n`; `first`: at once."""
        super().__init__(game or Leisurely())
        self.orders += wishes.pop("first", [])
        self._wishes = wishes

    def post(self, message: Message) -> None:
        super().post(message)
        if isinstance(message, CheckpointWritten):
            self.orders += self._wishes.pop(f"at_{len(self.folders)}", [])


def attempt(
    scratch: Path,
    supervisor: AmendingSupervisor,
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
    first = AmendingSupervisor(at_1=[Amend(amendments=[slower]), Amend(amendments=[slower, shorter])])

    finished = attempt(tmp_path / "first", first)

    assert (finished.outcome, finished.reason) == ("succeeded", "completed")
    assert [each.amendment.seq for each in first.of(Amended)] == [1, 2], "each once"
    (step,) = {each.step for each in first.of(Amended)}
    assert step % 64 == 0, "between two updates"
    last = first.of(CheckpointWritten)[-1]
    assert last.step == 448
    rates = dict(first.series("Policy/Learning Rate"))
    assert rates[step] == pytest.approx(3e-4), "a point tells of the update before it"
    assert rates[448] == pytest.approx(1e-5)
    assert checkpoint.load(Path(last.folder))[AMENDMENTS] == {"made": 2}
    before = first.of(CheckpointWritten)[0]
    assert AMENDMENTS not in checkpoint.load(Path(before.folder)), "older releases read what was never changed"

    # The worker dies; another one goes on from a checkpoint, and meanwhile a third change has come.
    middle = next(each for each in first.of(CheckpointWritten) if AMENDMENTS in checkpoint.load(Path(each.folder)))
    assert middle.step < 448
    longer = change(3, STEPS, 448, 512)
    second = AmendingSupervisor()

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
    assert {rate for _, rate in second.series("Policy/Learning Rate")} == {1e-5}


@pytest.mark.timeout(240)
def test_a_checkpoint_on_request_and_then_a_pause(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    supervisor = AmendingSupervisor(
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
    first = AmendingSupervisor(Pair(), at_2=[Amend(amendments=[further])])

    finished = attempt(tmp_path / "first", first, behaviors={"Short": 64, "Long": 1_000_000})

    assert finished.outcome == "released", "handed back, and no failure"
    assert finished.detail == "Short had ended and is to learn on, which takes a new attempt"
    last = first.of(CheckpointWritten)[-1]
    assert last.steps["Short"] == 64
    assert last.steps["Long"] > 64

    second = AmendingSupervisor(Pair())
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
            self.orders.append(Command(action="stop"))


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
    (event,) = listener.named("behavior_missing")
    assert event.message == f"{WAITS}for 3 s, and then pauses (simulators.startup_grace_seconds)"
    assert event.data == {"behaviors": ["White"]}
    written = [message for message in listener.told if isinstance(message, CheckpointWritten)]
    assert written[-1].steps == {"Black": MAX_STEPS}, "what was learned is kept"


def test_a_run_whose_startup_grace_is_null_says_that_it_waits_without_limit(tmp_path: Path) -> None:
    listener = Stopper()

    finished = end_of(tmp_path, listener, ("Black",), None)

    assert (finished.outcome, finished.reason) == ("succeeded", "user")
    (event,) = listener.named("behavior_missing")
    assert event.message == f"{WAITS}without limit (simulators.startup_grace_seconds)"


def test_a_run_that_is_stopped_after_its_games_were_refused_has_failed_and_names_the_refusal(tmp_path: Path) -> None:
    listener = Stopper("behavior_refused")

    finished = end_of(tmp_path, listener, ("Red",), 600.0)

    assert (finished.outcome, finished.reason) == ("failed", "behavior_refused")
    assert finished.detail == (
        "stopped on request before any behavior was trained: the run's configuration has no behavior 'Red', only: "
        "Black, White"
    )
    assert "behavior_missing" not in listener.events, "nothing has been learned"


def test_a_game_that_lacks_a_privileged_observation_is_refused_with_the_names_that_it_has(tmp_path: Path) -> None:
    listener = Listener()
    network = {"network_settings": {"privileged_observations": ["hands"]}}
    trainer = Trainer(Run({**CONFIG, "behaviors": {"Black": network}}, tmp_path).job(), listener, [])
    spec = Board(("Black",), 1).behaviors[0]
    trainer.registry.register(replace(spec, observations=(replace(spec.observations[0], name="board"),)))

    trainer.attempt.pool.close("collector_closing", "the test is over", rejoin=False)
    (event,) = listener.named("behavior_refused")
    assert "privileged_observations names 'hands'; the game announces 'board'. Correct the names" in event.message
    assert not trainer.attempt.learners


@pytest.mark.long
def test_a_run_that_continues_another_one_and_is_stopped_after_its_games_were_refused_has_failed(
    tmp_path: Path,
) -> None:
    first, listener = Listener(), Stopper("behavior_refused")
    end_of(tmp_path / "first", first, ("Black", "White"), 600.0)
    name = "ckpt_" + "0" * 26
    run = Run({**CONFIG, "checkpoint_settings": {"resume_from": name}}, tmp_path / "second")
    trainer = Trainer(run.job().model_copy(update={"checkpoints": {name: str(first.folders[-1])}}), listener, [])
    trainer.registry.register(Board(("Red",), 1).behaviors[0])

    finished = trainer.apply_commands()

    trainer.attempt.pool.close("collector_closing", "the test is over", rejoin=False)
    assert finished is not None
    assert (finished.outcome, finished.reason) == ("failed", "behavior_refused")


def test_a_run_that_has_trained_is_stopped_as_ever_though_another_game_was_refused(tmp_path: Path) -> None:
    listener = Stopper("behavior_refused")
    run = Run({**CONFIG, "simulators": {"startup_grace_seconds": 600.0}}, tmp_path)
    (spec, other) = (behavior for board in (Board(("Black",), 1), Board(("Red",), 1)) for behavior in board.behaviors)
    trainer = Trainer(run.job(), listener, [])
    for each in (spec, other):
        trainer.registry.register(each)

    finished = trainer.apply_commands()

    trainer.attempt.pool.close("collector_closing", "the test is over", rejoin=False)
    assert finished is not None
    assert (finished.outcome, finished.reason) == ("succeeded", "user")


def test_a_run_whose_behaviors_are_all_played_misses_none(tmp_path: Path) -> None:
    listener = Listener()

    finished = end_of(tmp_path, listener, ("Black", "White"), 600.0)

    assert (finished.outcome, finished.reason) == ("succeeded", "completed")
    assert "behavior_missing" not in listener.events


CHECKPOINTS = {name: f"ckpt_{digit * 26}" for name, digit in (("candidate", "0"), ("champion", "1"))}
KINDS: dict[str, dict[str, Any]] = {
    "train": {"behaviors": {"A": {}}},
    "inference": {"behaviors": {"A": {}}, "checkpoint_settings": {"inference": True}},
    "match": {"behaviors": {"A": {}}, "match": {**CHECKPOINTS, "behavior": "A"}},
    "evaluate": {"behaviors": {"A": {}}, "evaluate": {"checkpoint": CHECKPOINTS["candidate"], "behavior": "A"}},
}
GRACE = {"startup_grace_seconds": 0.3}


def end_without(
    folder: Path, supervisor: Supervisor, simulators: dict[str, Any], kind: str = "train", attempt: int = 1
) -> Finished:
    document = {**KINDS[kind], "simulators": simulators}
    return Trainer(
        Job(run_id="run_1", attempt=attempt, config=document, seed=1, scratch=str(folder)), supervisor, []
    ).run()


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_any_kind_that_no_simulator_joins_pauses_after_its_startup_grace(tmp_path: Path, kind: str) -> None:
    began = time.monotonic()

    finished = end_without(tmp_path, Supervisor(), GRACE, kind)

    assert (finished.outcome, finished.reason) == ("paused", "simulators_lost")
    assert finished.detail == (
        "no simulator has come within 0.3 s (simulators.startup_grace_seconds); start one (`ludus simulate GAME --run "
        "run_1` or `ludus unity run_1`), and the run goes on by itself"
    )
    assert time.monotonic() - began >= GRACE["startup_grace_seconds"]


@pytest.mark.parametrize(
    ("simulators", "remedy"),
    [
        ({"auto_resume": False}, "and resume the run: `ludus run resume run_1`"),
        ({"unity_port": 0}, "`ludus run resume run_1`, then let the build connect to port {port} of the worker"),
    ],
    ids=["a user resumes", "no build can wake it"],
)
def test_the_reason_names_the_way_on_that_there_is(
    tmp_path: Path, simulators: dict[str, Any], remedy: str, free_tcp_port: int
) -> None:
    if "unity_port" in simulators:
        simulators = {"unity_port": free_tcp_port}

    finished = end_without(tmp_path, Supervisor(), {**GRACE, **simulators})

    assert (finished.detail or "").endswith(remedy.format(port=free_tcp_port))


class Patient(Supervisor):
    """Wants the run to stop some time after its collectors listen."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._over = threading.Event()

    def post(self, message: Any) -> None:
        super().post(message)
        if isinstance(message, Listening):
            threading.Timer(self._seconds, self._over.set).start()

    def commands(self) -> list[Order]:
        return [Command(action="stop")] if self._over.is_set() else []


def test_a_run_whose_startup_grace_is_null_waits_without_limit(tmp_path: Path) -> None:
    finished = end_without(tmp_path, Patient(1.0), {"startup_grace_seconds": None, "grace_seconds": 0.1})

    assert (finished.outcome, finished.reason) == ("succeeded", "user"), "it was stopped, and had not paused before"


def test_a_run_whose_only_simulator_was_sent_away_pauses(tmp_path: Path) -> None:
    run = Run({"behaviors": {"Go": {}}, "simulators": {"grace_seconds": 0.5}}, tmp_path)
    finished: list[Finished] = []
    trainer = threading.Thread(target=lambda: finished.append(Trainer(run.job(), Supervisor(), []).run()), daemon=True)
    trainer.start()

    with pytest.raises(SessionRefused):
        connect(Stranger(), run="run", server=f"127.0.0.1:{run.port}")
    trainer.join(20)

    assert (finished[0].outcome, finished[0].reason) == ("paused", "simulators_lost")
    assert "have been gone for 0.5 s (simulators.grace_seconds); start one" in (finished[0].detail or "")


class Stranger(Simulation):
    """A game of another run."""

    behaviors = (BehaviorSpec("Stranger", (ObservationSpec((1,)),), ActionSpec(discrete_branches=(2,))),)

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        del start
        builder.request_decision(0, [0.0])

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        for action in actions:
            builder.request_decision(action.agent, [0.0])
