"""Whole attempts whose lessons change: real collectors, a real learner, games of the SDK."""

import threading
from collections.abc import Mapping
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
from worker.trainer import checkpoint
from worker.trainer.checkpoint import ENVIRONMENT_PARAMETERS
from worker.trainer.loop import Trainer
from worker.trainer.messages import (
    CheckpointCommitted,
    CheckpointWritten,
    Command,
    EditParameters,
    EventRecord,
    Finished,
    Job,
    Listening,
    Message,
    Metrics,
    Order,
    ParameterEdit,
    ParameterStates,
)

STEPS = 4
NETWORK = {"hidden_units": 8, "num_layers": 1}
LESSON_NUMBER = "Environment/Lesson Number/difficulty"


class Graded(Simulation):
    """Episodes of four steps, each of which earns the difficulty of the episode. Half of them are a success."""

    behaviors = (BehaviorSpec("Pupil", (ObservationSpec((1,)),), ActionSpec(discrete_branches=(2,))),)

    def __init__(self) -> None:
        self.resets = 0
        self.played: list[float] = []
        """The difficulty of each episode."""
        self._tick = 0

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        self.resets += 1
        self._tick = 0
        self._begin(builder, start.parameters)
        builder.request_decision(0, [0.0])

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        if not len(actions):
            return
        self._tick += 1
        earned = self.played[-1]
        if self._tick == STEPS:
            builder.end_episode(0, [1.0], earned)
            builder.report("Environment/Success", len(self.played) % 2)
            self._tick = 0
            self._begin(builder, builder.parameters.draw())
            builder.request_decision(0, [0.0])
        else:
            builder.request_decision(0, [self._tick / STEPS], earned)

    def _begin(self, builder: StepBuilder, values: Mapping[str, float]) -> None:
        assert builder.parameters.keys() == {"difficulty", "wind"}
        self.played.append(values["difficulty"])


class Supervisor:
    """Lets games play where the trainer listens, acknowledges checkpoints, and passes edits on when it is time."""

    def __init__(self, edits: list[ParameterEdit] | None = None, games: int = 1, until: str = "") -> None:
        """`until` names the event with which it has seen enough."""
        self._until = until
        self.told: list[Message] = []
        self.games = [Graded() for _ in range(games)]
        self._threads: list[threading.Thread] = []
        self._orders: list[Order] = [EditParameters(edits=edits)] if edits else []

    def post(self, message: Message) -> None:
        self.told.append(message)
        if isinstance(message, CheckpointWritten):
            self._orders.append(CheckpointCommitted(folder=message.folder))
        if isinstance(message, EventRecord) and message.name == self._until:
            self._orders.append(Command(action="stop"))
        if isinstance(message, Listening) and not self._threads:
            (endpoint,) = message.endpoints
            for game in self.games:
                self._threads.append(threading.Thread(target=play, args=(game, endpoint.address)))
                self._threads[-1].start()

    def commands(self) -> list[Order]:
        taken, self._orders = self._orders, []
        return taken

    def join(self) -> None:
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()

    def events(self, name: str) -> list[EventRecord]:
        return [message for message in self.told if isinstance(message, EventRecord) and message.name == name]

    def points(self, key: str) -> list[tuple[int, float]]:
        metrics = [message for message in self.told if isinstance(message, Metrics)]
        return [(point.step, point.value) for one in metrics for point in one.points if point.key == key]

    def folders(self) -> list[Path]:
        return [Path(message.folder) for message in self.told if isinstance(message, CheckpointWritten)]

    def states(self) -> ParameterStates:
        return [message for message in self.told if isinstance(message, ParameterStates)][-1]


def play(game: Graded, address: str) -> None:
    with suppress(SimulatorError):
        connect(game, run="alone", server=address, connect_timeout_seconds=5.0)


def lesson(value: float, **criteria: Any) -> dict[str, Any]:
    made = {"name": f"of {value}", "value": value}
    return made | ({"completion_criteria": {"behavior": "Pupil", **criteria}} if criteria else {})


def train(
    scratch: Path, supervisor: Supervisor, *curriculum: dict[str, Any], max_steps: int = 512, resume: Path | None = None
) -> Finished:
    """Run an attempt to its end."""
    config = {
        "torch_settings": {"device": "cpu"},
        "behaviors": {
            "Pupil": {
                "hyperparameters": {"batch_size": 32, "num_epoch": 1, "buffer_size": 64},
                "network_settings": NETWORK,
                "max_steps": max_steps,
                "summary_freq": 64,
                "checkpoint_interval": 128,
            }
        },
        "environment_parameters": {
            "difficulty": {"curriculum": list(curriculum)},
            "wind": {"sampler_type": "uniform", "sampler_parameters": {"seed": 3}},
        },
    }
    job = Job(
        run_id="alone",
        attempt=1,
        config=config,
        seed=1,
        scratch=str(scratch),
        resume_from=None if resume is None else str(resume),
    )
    finished = Trainer(job, supervisor, []).run()
    supervisor.join()
    return finished


@pytest.mark.timeout(120)
def test_lessons_change_while_a_run_goes_on(tmp_path: Path) -> None:
    supervisor = Supervisor(games=2)

    finished = train(
        tmp_path,
        supervisor,
        lesson(1.0, min_lesson_length=20, threshold=3.9, signal_smoothing=False),
        lesson(2.0, min_lesson_length=5, threshold=7.9, signal_smoothing=False, require_reset=True),
        lesson(3.0),
    )

    assert (finished.outcome, finished.reason) == ("succeeded", "completed")
    (begun,) = supervisor.events("lessons_began")
    assert begun.data["log_lines"] == [
        "Parameter 'difficulty' is in lesson 'of 1.0' and has value 'Float: value=1.0'.",
        "Parameter 'wind' is in lesson 'wind' and has value 'Uniform sampler: min=0.0, max=1.0'.",
    ]
    first, second = supervisor.events("lesson_changed")
    line = "Parameter 'difficulty' is in lesson 'of 2.0' and has value 'Float: value=2.0'."
    assert first.data["log_line"] == line
    assert first.message == (
        f"{line} Completed: lesson 1 of 3 'of 1.0': reward 4.00, needs > 3.90; 20 of 20 episodes. "
        "Now: lesson 2 of 3 'of 2.0': no reward yet, needs > 7.90; 0 of 5 episodes."
    )
    assert (first.data["parameter"], first.data["cause"], first.data["reset"]) == ("difficulty", "completed", False)
    assert (first.data["old"]["lesson"], first.data["new"]["lesson"]) == (1, 2)  # type: ignore[index]  # JSON
    assert second.data["reset"] is True
    for game in supervisor.games:
        assert game.resets == 2, "the second change asked for it, the first did not"
        assert game.played == sorted(game.played)
        assert set(game.played) == {1.0, 2.0, 3.0}
    numbers = supervisor.points(LESSON_NUMBER)
    assert [value for _, value in numbers] == sorted(value for _, value in numbers)
    assert {value for _, value in numbers} == {0.0, 1.0, 2.0}
    summaries = [step for step, _ in supervisor.points("Environment/Cumulative Reward")]
    assert {step for step, _ in numbers} >= set(summaries), "every summary has it"
    assert [value for _, value in supervisor.points("Environment/Lesson Number/wind")][-1] == 0.0
    assert [state["waits_for"] for state in supervisor.states().parameters] == [
        "lesson 3 of 3 'of 3.0': the last one",
        "no curriculum: Uniform sampler: min=0.0, max=1.0",
    ]


@pytest.mark.timeout(120)
def test_a_resumed_run_goes_on_in_its_lesson_and_with_its_edits(tmp_path: Path) -> None:
    curriculum = (
        lesson(1.0, min_lesson_length=5, threshold=3.9),
        lesson(2.0, min_lesson_length=1000, threshold=7.9),
        lesson(3.0),
    )
    edits = [ParameterEdit(seq=1, parameter="wind", value=0.5), ParameterEdit(seq=2, parameter="difficulty", lesson=2)]
    first = Supervisor(edits)
    train(tmp_path / "first", first, *curriculum, max_steps=256)
    (told, moved) = [*first.events("parameter_changed"), *first.events("lesson_changed")]
    assert "Changed by a user; before: no curriculum: Uniform sampler: min=0.0, max=1.0" in told.message
    assert (told.data["old"]["value"], told.data["new"]["value"]) != (0.5, 0.5)  # type: ignore[index]  # JSON
    assert told.data["new"]["value"] == 0.5  # type: ignore[index]  # JSON
    assert (moved.data["cause"], moved.data["old"]["lesson"], moved.data["new"]["lesson"]) == ("edited", 1, 2)  # type: ignore[index]  # JSON
    saved = checkpoint.load(first.folders()[-1])[ENVIRONMENT_PARAMETERS]
    episodes = len(saved["manager"]["parameters"][0]["values"])
    assert episodes > 10

    again = [*edits, ParameterEdit(seq=3, parameter="difficulty", value=2.5)]
    second = Supervisor(again)
    train(tmp_path / "second", second, *curriculum, max_steps=512, resume=first.folders()[-1])

    assert second.events("lesson_changed") == []
    (begun,) = second.events("lessons_began")
    assert "Parameter 'difficulty' is in lesson 'of 2.0' and has value" in begun.message
    assert "Parameter 'wind' is in lesson 'wind' and has value 'Float: value=0.5'." in begun.message
    (changed,) = second.events("parameter_changed")
    assert changed.data["parameter"] == "difficulty", "what the checkpoint knows is not done again"
    assert changed.data["old"]["episodes"] >= episodes  # type: ignore[index]  # JSON
    assert set(second.games[0].played) <= {2.0, 2.5}
    assert second.games[0].played[-1] == 2.5
    assert second.states().edit == 3


@pytest.mark.timeout(120)
def test_a_checkpoint_from_before_there_were_lessons_still_resumes(tmp_path: Path) -> None:
    curriculum = (lesson(1.0, min_lesson_length=5, threshold=100), lesson(2.0))
    first = Supervisor()
    train(tmp_path / "first", first, *curriculum, max_steps=128)
    state = checkpoint.load(first.folders()[-1])
    del state[ENVIRONMENT_PARAMETERS]
    (tmp_path / "old").mkdir()
    checkpoint.save(tmp_path / "old", state)

    second = Supervisor()
    finished = train(tmp_path / "second", second, *curriculum, max_steps=192, resume=tmp_path / "old")

    assert finished.outcome == "succeeded"
    assert second.states().parameters[0]["lesson"] == 1


@pytest.mark.timeout(120)
def test_reported_success_ends_a_lesson_and_a_metric_that_never_comes_is_told(tmp_path: Path) -> None:
    supervisor = Supervisor(until="lesson_measure_missing")

    train(
        tmp_path,
        supervisor,
        lesson(1.0, measure="Environment/Success", min_lesson_length=10, threshold=0.4, signal_smoothing=False),
        lesson(2.0, measure="Environment/Sucess", threshold=0.4),
        lesson(3.0),
        max_steps=100_000,
    )

    (change,) = supervisor.events("lesson_changed")
    assert change.data["old"]["measured"] == pytest.approx(0.5, abs=0.1)  # type: ignore[index]  # JSON
    (missing,) = supervisor.events("lesson_measure_missing")
    assert missing.level == "warning"
    assert "no simulator has reported 'Environment/Sucess' in 100 episodes" in missing.message
    assert missing.data == {"parameter": "difficulty", "measure": "Environment/Sucess"}
