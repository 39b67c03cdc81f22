"""The end of a run is told to every simulator as what it is, also to one that computes or writes at that moment."""

import threading
import time

import pytest

from ludus.collector.service import LINGER_SECONDS
from ludus.protocol.codes import CloseCode
from ludus.sdk import (
    Actions,
    ActionSpec,
    BehaviorSpec,
    ConnectionSummary,
    ObservationSpec,
    ResetInfo,
    Simulation,
    StepBuilder,
    connect,
)
from tests.ludus.collector.stack import learner

BEFORE = 5
"""Answers that the game takes before the slow one."""


class Slow(Simulation):
    """Asks again at once for each behavior that was answered, but computes for a while once."""

    def __init__(self, behaviors: int, seconds: float) -> None:
        self.behaviors = tuple(
            BehaviorSpec(f"Slow{index}", (ObservationSpec((1,)),), ActionSpec(discrete_branches=(2,)))
            for index in range(behaviors)
        )
        self._seconds = seconds
        self._answers = 0
        self.computing = threading.Event()

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        del start
        for spec in self.behaviors:
            builder.request_decision(0, [0.0], behavior=spec.name)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        self._answers += 1
        if self._answers == BEFORE:
            self.computing.set()
            time.sleep(self._seconds)  # allow: sleep, because this game computes for long
        for action in actions:
            builder.request_decision(0, [0.0], behavior=action.behavior)


@pytest.mark.parametrize(
    ("behaviors", "seconds"),
    [(2, LINGER_SECONDS / 3), (1, 1.3 * LINGER_SECONDS)],
    ids=["with-an-answer-unread-before-it", "after-the-stream-has-ended"],
)
def test_a_simulator_that_computes_when_the_run_ends_is_told_of_the_end(behaviors: int, seconds: float) -> None:
    endings: list[ConnectionSummary] = []
    with learner(size=10_000) as trainer:
        game = Slow(behaviors, seconds)

        def play() -> None:
            endings.append(connect(game, run="run-1", server=trainer.endpoints[0].address, connect_timeout_seconds=0.0))

        thread = threading.Thread(target=play)
        thread.start()
        assert game.computing.wait(20)
        trainer.pool.close("run_finished", "enough", rejoin=False)
        thread.join(20)

    assert [(end.code, end.reason) for end in endings] == [(CloseCode.RUN_FINISHED, "enough")]
