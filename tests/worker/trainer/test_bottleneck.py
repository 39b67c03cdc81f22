"""Each cause that can hold a run back is provoked in a real trainer with real collectors, and named rightly."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

from ludus.protocol.batches import DecisionBatch
from ludus.schemas import Bottleneck, BottleneckCause
from ludus.sdk import (
    Actions,
    ActionSpec,
    BehaviorSpec,
    ObservationSpec,
    ResetInfo,
    ResumableSimulation,
    Simulation,
    SimulatorError,
    StepBuilder,
    connect,
)
from server.config.resolution import review
from server.runs.diagnosis import TimeSpent, diagnose
from tests.worker.trainer.conftest import StartTrainer

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]
MEASURED_SECONDS = 3.0
"""Of what is judged."""


@dataclass
class Paced(Simulation):
    """Agents that always see the same, at a pace."""

    agents: int = 4
    pace: float = 0.0
    """Seconds of a step."""
    size: int = 4

    @property
    def behaviors(self) -> tuple[BehaviorSpec, ...]:  # type: ignore[override]
        """One, with a vector of `size` numbers."""
        return (BehaviorSpec("Paced", (ObservationSpec((self.size,)),), ActionSpec(continuous_size=2)),)

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        """Ask for all agents."""
        del start
        self._ids = np.arange(self.agents, dtype=np.int32)
        self._seen = np.zeros((self.agents, self.size), np.float32)
        self._answered = 0
        self._ask(builder)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        """Ask again, once all agents are answered and the step's time is over."""
        self._answered += len(actions)
        if self._answered == self.agents:
            self._answered = 0
            time.sleep(self.pace)  # allow: sleep, because this game moves at a pace
            self._ask(builder)

    def _ask(self, builder: StepBuilder) -> None:
        rewards = np.zeros(self.agents, np.float32)
        builder.request_decisions(DecisionBatch(self._ids, rewards, [self._seen]))


class Slow(Paced, ResumableSimulation):
    """A game that takes long to say where it is."""

    def position(self) -> bytes:
        """Take much longer than a round, on a busy machine, too."""
        time.sleep(1.5)  # allow: sleep, because this game is slow to save its position
        return b"here"

    def resume(self, builder: StepBuilder, start: ResetInfo, position: bytes) -> None:
        """Begin again."""
        del position
        self.reset(builder, start)


def document(hyperparameters: dict[str, Any], *, units: int = 16, **more: Any) -> dict[str, Any]:
    """A configuration that learns from rounds of 512 steps, for as long as the test looks."""
    behavior = {
        "hyperparameters": {"batch_size": 256, "buffer_size": 512, "num_epoch": 1, **hyperparameters},
        "network_settings": {"hidden_units": units},
        "max_steps": 100_000_000,
        "checkpoint_interval": 50_000_000,
        **more,
    }
    return {"seed": 1, "torch_settings": {"device": "cpu"}, "behaviors": {"Paced": behavior}}


def cause_of(
    start: StartTrainer, config: dict[str, Any], games: list[Simulation], way: Callable[[str], Any] | None = None
) -> Bottleneck:
    """Train with these games until there are measurements without the beginning, and return what they say."""
    trainer = start(config)
    reports = trainer.reports()
    address = next(each for each in reports if each["type"] == "listening")["endpoints"][0]["address"]

    def play(game: Simulation, server: str) -> None:
        with suppress(SimulatorError):
            connect(game, run="alone", server=server, connect_timeout_seconds=1.0)

    with way(address) if way is not None else _direct(address) as server:
        players = [threading.Thread(target=play, args=(game, server), daemon=True) for game in games]
        for number, player in enumerate(players):
            player.start()
            while number == 0 and next(reports)["type"] != "simulator_connected":
                pass  # the first game is number 0
        first: float | None = None
        for message in reports:
            assert message["type"] != "finished", message
            spent = message.get("time_spent")
            if spent is None or spent["simulators"] < len(games) or not spent["steps"]:
                continue
            first = spent["at"] if first is None else first
            if spent["at"] >= first + 2 * MEASURED_SECONDS:
                trainer.end()
                for player in players:
                    player.join(30)
                resolved, _ = review(config, local=True)
                return diagnose(TimeSpent(**spent), resolved)
    raise AssertionError("the trainer ended")


@contextmanager
def _direct(address: str) -> Iterator[str]:
    yield address


@contextmanager
def delayed(to_server: float, to_game: float, address: str) -> Iterator[str]:
    """Delay all bytes by these times, in seconds; an event loop waits for whole milliseconds."""
    host, port = address.rsplit(":", 1)
    ports: queue.SimpleQueue[int] = queue.SimpleQueue()
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                loop.call_later(seconds, writer.write, data)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()  # else the socket is left to the garbage collector, in another test

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port))
        await asyncio.gather(pass_on(reader, back, to_server), pass_on(there, writer, to_game))

    async def serve() -> None:
        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        ports.put(server.sockets[0].getsockname()[1])
        await over.wait()
        server.close()
        connections = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait_for(asyncio.gather(*connections), 10)

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        finally:
            loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield f"127.0.0.1:{ports.get(timeout=10)}"
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(20)
        assert not thread.is_alive()


def test_games_that_take_long_are_the_games(start: StartTrainer) -> None:
    found = cause_of(start, document({}), [Paced(pace=0.05), Paced(pace=0.05)])

    assert found.cause is BottleneckCause.GAMES, found
    assert min(found.learner_idle or 0.0, found.collectors_idle or 0.0) > 0.5, "both sides wait for the games"
    assert found.share is not None
    assert found.share > 0.7
    assert "for a step" in found.message
    assert found.advice is not None
    assert "time_scale, now 20" in found.advice
    assert found.steps_per_second is not None
    assert found.steps_per_second_without == pytest.approx(found.steps_per_second / (1 - found.share))


def test_a_large_network_for_many_agents_is_acting(start: StartTrainer) -> None:
    config = document({}, units=1024, trainer_type="sac")
    config["behaviors"]["Paced"]["hyperparameters"] = {"steps_per_update": 16_384, "batch_size": 32}

    found = cause_of(start, config, [Paced(agents=512, size=64)])

    assert found.cause is BottleneckCause.ACTING, found
    assert found.advice is not None
    assert "simulators.collectors.local to 2" in found.advice


def test_games_far_away_are_the_network(start: StartTrainer) -> None:
    found = cause_of(start, document({}), [Paced(), Paced()], way=partial(delayed, 0.02, 0.02))

    assert found.cause is BottleneckCause.NETWORK, found
    assert found.advice is not None
    assert "ludus collect" in found.advice


def test_many_epochs_are_the_learner(start: StartTrainer) -> None:
    found = cause_of(start, document({"num_epoch": 300, "batch_size": 64}), [Paced(), Paced()])

    assert found.cause is BottleneckCause.LEARNER, found
    assert found.learner_idle is not None
    assert found.collectors_idle is not None
    assert found.learner_idle < 0.3, "the learner does not wait"
    assert found.collectors_idle > 0.5, "the collectors wait for it"
    assert found.advice is not None
    assert "threaded: true" in found.advice


def test_one_slow_game_among_quick_ones_is_the_straggler_and_is_named(start: StartTrainer) -> None:
    config = document({"buffer_size": 64, "batch_size": 64})

    found = cause_of(start, config, [Paced(pace=0.25), Paced(), Paced(), Paced()])

    assert found.cause is BottleneckCause.STRAGGLERS, found
    assert found.simulator == 0, "the first game that came"
    assert "for simulator 0" in found.message


def test_one_quick_game_is_too_few_simulators(start: StartTrainer) -> None:
    """It waits in another process or in the next room, less than a network takes: its collector has little to do."""
    config = document({"buffer_size": 4_096, "batch_size": 4_096})

    found = cause_of(start, config, [Paced(agents=1)], way=partial(delayed, 0.0, 0.001))

    assert found.cause is BottleneckCause.TOO_FEW_SIMULATORS, found
    assert found.advice is not None
    assert found.advice.startswith("start more simulators")


def test_a_checkpoint_each_round_that_games_take_long_for_is_the_checkpoints(start: StartTrainer) -> None:
    config = document({}, checkpoint_interval=512)

    found = cause_of(start, config, [Slow(), Slow()])

    assert found.cause is BottleneckCause.CHECKPOINTS, found
    assert found.advice is not None
    assert "checkpoint_interval" in found.advice
