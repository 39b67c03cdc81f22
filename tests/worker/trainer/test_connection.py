"""The pipe between supervisor and trainer: nothing blocks the learner, silence ends it."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from ludus.config.run import RunConfig
from server.metrics.points import MetricPoint
from worker.trainer.connection import METRIC_BACKLOG, ConnectionClosed, SupervisorConnection, TrainerConnection
from worker.trainer.messages import Command, EventRecord, Finished, Heartbeat, Job, Metrics

JOB = Job(
    run_id="r",
    attempt=3,
    config=RunConfig.model_validate({"behaviors": {"A": {"trainer_type": "ppo"}}}),
    seed=1,
    scratch="/nowhere",
)


class Ends:
    """Both ends of a link, in one process."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.silences: list[str] = []
        self.silenced = threading.Event()
        self.supervisor = SupervisorConnection(ours)
        self.trainer = TrainerConnection(theirs, self._silence)

    def _silence(self, reason: str) -> None:
        self.silences.append(reason)
        self.silenced.set()

    def start(self, lease: float = 5.0) -> None:
        self.supervisor.send(JOB)
        assert self.trainer.await_job() == JOB
        self.trainer.start(lease)


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.trainer.close()
    ends.supervisor.close()


def point(step: int) -> MetricPoint:
    return MetricPoint(behavior="Ball", key="k", step=step, at=0.0, value=1.0)


def test_messages_arrive_whole_and_in_order(ends: Ends) -> None:
    ends.start()
    for number in range(100):
        ends.trainer.post(EventRecord(name=f"event_{number}", message="x" * 2000))

    received = [ends.supervisor.receive(5.0) for _ in range(100)]

    assert [message.name for message in received if isinstance(message, EventRecord)] == [
        f"event_{number}" for number in range(100)
    ]


def test_points_arrive_before_what_was_said_after_them(ends: Ends) -> None:
    """A supervisor that has heard the last word, or stored a checkpoint, has all points up to it."""
    ends.supervisor.send(JOB)
    ends.trainer.await_job()
    for step in (1, 2):
        ends.trainer.post(Metrics(points=[point(step)]))
    ends.trainer.post(Finished(outcome="succeeded"))

    ends.trainer.start(5.0)

    assert ends.supervisor.receive(5) == Metrics(points=[point(1), point(2)])
    assert ends.supervisor.receive(5) == Finished(outcome="succeeded")


def test_posting_never_blocks_while_the_supervisor_does_not_read_and_events_are_kept(ends: Ends) -> None:
    ends.start()
    events = 2000
    begin = time.monotonic()
    for number in range(events):
        ends.trainer.post(EventRecord(name=f"event_{number}", message="x" * 1000))
        ends.trainer.post(Metrics(points=[point(step) for step in range(number * 10, number * 10 + 10)]))
    assert time.monotonic() - begin < 5.0

    names, steps = [], []
    while not (len(names) == events and steps and steps[-1] == events * 10 - 1):
        message = ends.supervisor.receive(10.0)
        assert message is not None, "something was dropped"
        if isinstance(message, EventRecord):
            names.append(message.name)
        elif isinstance(message, Metrics):
            steps += [item.step for item in message.points]

    assert names == [f"event_{number}" for number in range(events)]
    assert steps == sorted(steps)
    assert steps[-1] == events * 10 - 1, "the newest point of a thinned backlog survives"
    assert len(steps) < events * 10
    assert len(steps) <= 2 * METRIC_BACKLOG


def test_commands_reach_the_trainer(ends: Ends) -> None:
    ends.start()
    ends.supervisor.send(Heartbeat())
    ends.supervisor.send(Command(action="stop"))

    deadline = time.monotonic() + 5.0
    received: list[object] = []
    while not received and time.monotonic() < deadline:
        received += ends.trainer.commands()

    assert received == [Command(action="stop")]


def test_a_silent_supervisor_ends_the_trainer_within_one_lease(ends: Ends) -> None:
    ends.start(lease=0.3)

    assert ends.silenced.wait(5.0)
    assert ends.silences == ["the supervisor has been silent for 0.3 s (LUDUS_WORKER__LEASE_SECONDS)"]


def test_a_supervisor_that_beats_keeps_the_trainer_alive_past_the_lease(ends: Ends) -> None:
    ends.start(lease=0.4)
    for _ in range(10):
        ends.supervisor.send(Heartbeat())
        assert not ends.silenced.wait(0.1)


def test_a_dead_supervisor_ends_the_trainer_at_once(ends: Ends) -> None:
    ends.start(lease=60.0)
    ends.supervisor.close()

    assert ends.silenced.wait(5.0)
    assert ends.silences == ["the supervisor is gone"]


def test_a_dead_trainer_closes_the_link_after_its_last_words(ends: Ends) -> None:
    ends.start()
    ends.trainer.post(EventRecord(name="last_words", message="..."))
    ends.trainer.close()

    message = ends.supervisor.receive(5.0)

    assert isinstance(message, EventRecord)


def test_a_warm_trainer_notices_that_its_supervisor_went_before_giving_a_job(ends: Ends) -> None:
    ends.supervisor.close()

    with pytest.raises(ConnectionClosed):
        ends.trainer.await_job()
