"""The cost of recording matches in a self-play run, with one match per 100 agent steps.

    python benchmarks/matches.py [--seconds 5] [--pairs 6]

One run of a whole trainer with a real collector: 16 agents, eight a side, whose episodes last 100 decisions, each of
them a match. Its parent, a process of its own like supervisor and controller, records matches for a while and drops
them for a while, in turn (A B A B ...): entering them into a ledger in SQLite, and rating them every other second.
The result is the ratio of the medians of learned agent steps per second. The bar is a loss of 2 %.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import structlog

from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from ludus.sdk import Actions, ResetInfo, Simulation, SimulatorError, StepBuilder, connect
from server.config.resolution import resolve
from server.kit.db.database import Database
from server.kit.db.migrate import upgrade_database
from server.ladders.ratings import PAUSE_SECONDS, RatingJob
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import RunQueue
from server.lifecycle.service import RunService
from server.runs.repository import NewRun
from tests.factories import RecordingWakeUp
from worker.trainer.loop import Trainer
from worker.trainer.messages import (
    CheckpointCommitted,
    CheckpointWritten,
    Command,
    Job,
    Listening,
    MatchesPlayed,
    Message,
    Order,
    Progress,
)

SIDE, LENGTH, WIDTH = 8, 100, 8
CONFIG = {
    "behaviors": {
        "Duel": {
            "trainer_type": "ppo",
            "hyperparameters": {"batch_size": 256, "buffer_size": 4096},
            "network_settings": {"hidden_units": 64},
            "max_steps": 10**9,
            "checkpoint_interval": 10**9,
            "time_horizon": 64,
            "threaded": True,
            "self_play": {"save_steps": 20_000, "swap_steps": 10_000, "team_change": 10**9},
        }
    },
    "seed": 1,
}
WARM_UP_SECONDS = 6.0


class Duel(Simulation):
    """Two sides of agents that earn by chance; all episodes are as long."""

    behaviors = tuple(
        BehaviorSpec(f"Duel?team={team}", (ObservationSpec((WIDTH,)),), ActionSpec(0, (3,))) for team in (0, 1)
    )

    def __init__(self) -> None:
        self._rng = np.random.default_rng(1)
        self._tick = 0
        self._answered = 0

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        """Begin."""
        del start
        self._ask(builder)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        """Send the next step when all agents are answered."""
        self._answered += sum(len(batch.discrete) for batch in actions.batches)
        if self._answered < 2 * SIDE:
            return
        self._tick += 1
        if self._tick % LENGTH == 0:
            winner = int(self._rng.integers(2))
            for team, spec in enumerate(self.behaviors):
                for agent in range(SIDE):
                    reward = 1.0 if team == winner else -1.0
                    builder.end_episode(agent=agent, observation=np.zeros(WIDTH), reward=reward, behavior=spec.name)
        self._ask(builder)

    def _ask(self, builder: StepBuilder) -> None:
        self._answered = 0
        for spec in self.behaviors:
            for agent, row in enumerate(self._rng.standard_normal((SIDE, WIDTH))):
                builder.request_decision(agent=agent, observation=row, behavior=spec.name)


def play(address: str) -> None:
    """Play until the trainer ends."""
    try:
        connect(Duel(), run="alone", server=address, connect_timeout_seconds=10.0)
    except SimulatorError as error:
        print(f"simulator: {error}", file=sys.stderr)


def record(pipe: Connection, url: str) -> None:
    """Enter the matches that come, and rate them now and then, until None comes."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    database = Database(url)
    with database.write() as session:
        RunService(session, RecordingWakeUp()).create(NewRun(resolve(CONFIG)))
    claim = RunQueue(database).claim("bench", 3600.0)
    assert claim is not None
    ledger, rater, rated = AttemptLedger(database, claim), RatingJob(database), time.monotonic()
    begun = time.process_time()
    while True:
        if pipe.poll(0.2):
            matches = pipe.recv()
            if matches is None:
                pipe.send(time.process_time() - begun)
                return
            ledger.matches.append(matches)
        if time.monotonic() - rated > PAUSE_SECONDS:
            rater.rate()
            rated = time.monotonic()


class Superior:
    """Records matches in every other window; stops the trainer at the end."""

    def __init__(self, pipe: Connection, seconds: float, pairs: int) -> None:
        self._pipe = pipe
        self._seconds = seconds
        self._pairs = pairs
        self._orders: list[Order] = []
        self._player: multiprocessing.process.BaseProcess | None = None
        self._window = -1
        """Recorded are the even ones."""
        self._begun: tuple[float, float, int] | None = None
        """Time, processor time of this process, and step at the beginning of the window."""
        self.rates: dict[bool, list[float]] = {True: [], False: []}
        """Whether matches were recorded -> agent steps per second of each window."""
        self.costs: dict[bool, list[float]] = {True: [], False: []}
        """Likewise: seconds of the trainer's processor time per 1,000 steps."""
        self.steps = self.matches = 0
        """In windows in which matches were recorded."""

    def post(self, message: Message) -> None:
        """Take a report."""
        match message:
            case Listening() if self._player is None:
                address = message.endpoints[0].address
                self._player = multiprocessing.get_context("spawn").Process(target=play, args=(address,), daemon=True)
                self._player.start()
            case CheckpointWritten():
                self._orders.append(CheckpointCommitted(folder=message.folder))
            case MatchesPlayed() if self._window >= 0 and self._window % 2 == 0:
                self.matches += len(message.matches)
                self._pipe.send(message.matches)
            case Progress() if message.step:
                self._look(message.step)

    def commands(self) -> list[Order]:
        """Return the received messages."""
        orders, self._orders = self._orders, []
        return orders

    def _look(self, step: int) -> None:
        now, used = time.monotonic(), time.process_time()
        if self._begun is None:
            self._begun = (now, used, step)
        began, before, first = self._begun
        if now - began < (WARM_UP_SECONDS if self._window < 0 else self._seconds):
            return
        if self._window >= 0:
            recorded = self._window % 2 == 0
            self.rates[recorded].append((step - first) / (now - began))
            self.costs[recorded].append(1000 * (used - before) / (step - first))
            self.steps += step - first if recorded else 0
        self._window += 1
        self._begun = (now, used, step)
        if self._window == 2 * self._pairs:
            self._orders.append(Command(action="stop"))


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a window")
    parser.add_argument("--pairs", type=int, default=6, help="windows of either kind")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with tempfile.TemporaryDirectory(prefix="ludus-matches-") as folder:
        url = f"sqlite:///{folder}/ladder.db"
        upgrade_database(Database(url))
        context = multiprocessing.get_context("spawn")
        pipe, theirs = context.Pipe()
        recorder = context.Process(target=record, args=(theirs, url), daemon=True)
        recorder.start()
        superior = Superior(pipe, arguments.seconds, arguments.pairs)
        job = Job(run_id="alone", attempt=1, config=resolve(CONFIG), seed=1, scratch=f"{folder}/scratch")
        finished = Trainer(job, superior, []).run()
        pipe.send(None)
        cost = pipe.recv()
        recorder.join()
    assert finished.outcome == "succeeded", finished.detail
    with_them, without = (statistics.median(superior.rates[kind]) for kind in (True, False))
    print(f"one match per {superior.steps / superior.matches:.0f} agent steps, {superior.matches} recorded")
    print(f"agent steps/s: {with_them:.0f} recorded, {without:.0f} dropped; ratio {with_them / without:.3f}")
    kept, dropped = (statistics.median(superior.costs[kind]) for kind in (True, False))
    own = 1000 * cost / superior.steps
    print(f"trainer's processor time per 1,000 steps: {1000 * kept:.1f} ms recorded, {1000 * dropped:.1f} ms dropped")
    print(f"that of the recorder (supervisor's and controller's part): {1000 * own:.2f} ms")
    print(f"load average {', '.join(f'{load:.1f}' for load in os.getloadavg())}")


if __name__ == "__main__":
    main()
