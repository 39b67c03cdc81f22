"""A run that no simulator ever joins pauses, and says how it goes on."""

import threading
import time
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
    StepBuilder,
    connect,
)
from tests.worker.trainer.attempts import Run
from tests.worker.trainer.supervisor_port import Supervisor
from worker.trainer.loop import Trainer
from worker.trainer.messages import Command, Finished, Job, Listening, Order

CHECKPOINTS = {name: f"ckpt_{digit * 26}" for name, digit in (("candidate", "0"), ("champion", "1"))}
KINDS: dict[str, dict[str, Any]] = {
    "train": {"behaviors": {"A": {}}},
    "inference": {"behaviors": {"A": {}}, "checkpoint_settings": {"inference": True}},
    "match": {"behaviors": {"A": {}}, "match": {**CHECKPOINTS, "behavior": "A"}},
    "evaluate": {"behaviors": {"A": {}}, "evaluate": {"checkpoint": CHECKPOINTS["candidate"], "behavior": "A"}},
}
GRACE = {"startup_grace_seconds": 0.3}


def end_of(
    folder: Path, supervisor: Supervisor, simulators: dict[str, Any], kind: str = "train", attempt: int = 1
) -> Finished:
    document = {**KINDS[kind], "simulators": simulators}
    return Trainer(
        Job(run_id="run_1", attempt=attempt, config=document, seed=1, scratch=str(folder)), supervisor, []
    ).run()


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_any_kind_that_no_simulator_joins_pauses_after_its_startup_grace(tmp_path: Path, kind: str) -> None:
    began = time.monotonic()

    finished = end_of(tmp_path, Supervisor(), GRACE, kind)

    assert (finished.outcome, finished.reason) == ("paused", "simulators_lost")
    assert finished.detail == (
        "no simulator has come within 0.3 s (simulators.startup_grace_seconds); start one (`ludus simulate GAME --run "
        "run_1` or `ludus unity run_1`), and the run goes on by itself"
    )
    assert time.monotonic() - began >= GRACE["startup_grace_seconds"]


def test_each_attempt_has_a_startup_grace_of_its_own(tmp_path: Path) -> None:
    for attempt in (1, 2):
        assert end_of(tmp_path / str(attempt), Supervisor(), GRACE, attempt=attempt).outcome == "paused"


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

    finished = end_of(tmp_path, Supervisor(), {**GRACE, **simulators})

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
    finished = end_of(tmp_path, Patient(1.0), {"startup_grace_seconds": None, "grace_seconds": 0.1})

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
