"""The cost of answering with eight frozen policies instead of one: throughput of a collector.

    python benchmarks/opponents.py [--seconds 2] [--rounds 5] [--only NAME]

64 agents in eight simulators, whose team does not learn. They play one policy, or each simulator another one; for
comparison the same agents as the team that learns (one policy, with recording). All three run in turn
(A B C A B C ...) against the same client (`benchmarks.collector`); the results are ratios of the medians. Below, the
forward passes alone, by the clock of the process that makes them: one policy, eight at once, eight one after the other.
"""

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.collector import CONTINUOUS, DISCRETE, HORIZON, NETWORK, ROUND, Scenario, run_client
from ludus.collector.activations import FloatArray
from ludus.collector.arena import Arena
from ludus.collector.commands import OpponentAssignment, PolicySpec
from ludus.collector.layout import ActorLayout
from ludus.collector.messages import BehaviorAnnounced, SimulatorLeft
from ludus.collector.settings import CollectorSettings
from worker.collectors.acting import POLICIES
from worker.collectors.events import RoundCollected, SegmentsDelivered
from worker.collectors.pool import CollectorPool

COUNT = 8
TEAM = 1
SCENARIOS = tuple(
    Scenario(f"8 x 8 {name}", COUNT, 8, replace(spec, name=f"Bench?team={TEAM}"))
    for name, spec in (("discrete", DISCRETE), ("continuous", CONTINUOUS))
)
KINDS = {
    "learning": OpponentAssignment(TEAM, {}, [0]),
    "one": OpponentAssignment(None, {TEAM: [0]}, [0]),
    "eight": OpponentAssignment(None, {TEAM: list(range(COUNT))}, [0]),
}


def weights_of(scenario: Scenario) -> list[FloatArray]:
    """Return eight policies."""
    size = ActorLayout.of(scenario.spec, NETWORK).flat_size
    rng = np.random.default_rng(0)
    return [np.abs(rng.standard_normal(size, np.float32)) * np.float32(0.1) for _ in range(COUNT)]


class Bench:
    """A collector and its client."""

    def __init__(self, scenario: Scenario, seconds: float) -> None:
        self._scenario = scenario
        self._weights = weights_of(scenario)
        self._pool = CollectorPool(CollectorSettings("bench", 1, 7))
        self._port = self._pool.start()[0].port
        context = multiprocessing.get_context("spawn")
        self._ticks, theirs = context.Pipe()
        self._answers, ours = context.Pipe(duplex=False)
        self._client = context.Process(target=run_client, args=(scenario, theirs, ours, seconds), daemon=True)
        self._client.start()
        self._answers.recv()
        self._arena = Arena.create(scenario.spec, 2 * ROUND)
        self._round = 0
        self._admitted = False
        self._here = 0
        self.turn("one")  # admission and warm-up

    def turn(self, kind: str) -> int:
        """Run the client; return the number of answered messages."""
        if self._admitted:
            self._assign_opponents(kind)
        self._ticks.send((self._port, True))
        self._here = self._scenario.simulators
        while not self._answers.poll(0) or self._here:
            for notice in self._pool.poll(0.05):
                self._handle(notice, kind)
        return sum(self._answers.recv())

    def _assign_opponents(self, kind: str) -> None:
        self._pool.assign_opponents("Bench", KINDS[kind], dict(enumerate(self._weights)))

    def _handle(self, notice: object, kind: str) -> None:
        match notice:
            case BehaviorAnnounced():
                program = PolicySpec(NETWORK, len(self._weights[0]), HORIZON, self_play=True)
                self._pool.admit(notice.spec, program, self._arena)
                self._pool.publish("Bench", 1, self._weights[0])
                self._assign_opponents(kind)
                self._admitted = True
                self._pool.grant("Bench", self._round, ROUND)
            case SegmentsDelivered():
                self._pool.reclaim("Bench", notice.segments)
            case RoundCollected():
                self._round += 1
                self._pool.grant("Bench", self._round, ROUND)
            case SimulatorLeft():
                self._here -= 1

    def close(self) -> None:
        """End every process."""
        self._ticks.send(None)
        self._pool.close("run_finished", "the benchmark is over", rejoin=False)
        self._client.join()


def measure(scenario: Scenario, seconds: float, rounds: int) -> dict[str, list[float]]:
    """Take turns and return the messages per second of each kind, turn by turn."""
    bench = Bench(scenario, seconds)
    try:
        found: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for _ in range(rounds):
            for kind, rates in found.items():
                rates.append(bench.turn(kind) / seconds)
    finally:
        bench.close()
    return found


def passes(scenario: Scenario, rounds: int) -> dict[str, float]:
    """Return the median microseconds of forward passes over 64 rows."""
    weights, rng = weights_of(scenario), np.random.default_rng(1)
    alone, stacked = POLICIES.policy(scenario.spec, NETWORK), POLICIES.stacked(scenario.spec, NETWORK)
    alone.load(weights[0])
    stacked.load(weights)
    rows = np.repeat(np.arange(COUNT), 8)
    seen: list[Any] = [rng.standard_normal((64, *scenario.spec.observations[0].shape), np.float32)]
    each = [POLICIES.policy(scenario.spec, NETWORK) for _ in weights]
    for policy, flat in zip(each, weights, strict=True):
        policy.load(flat)

    def one_by_one() -> None:
        for place, policy in enumerate(each):
            policy.act([seen[0][8 * place : 8 * place + 8]], None, None, rng)

    contestants: dict[str, Callable[[], object]] = {
        "one": lambda: alone.act(seen, None, None, rng),
        "eight at once": lambda: stacked.act(rows, seen, None, None, rng),
        "one by one": one_by_one,
    }
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(200 * rounds):
        for name, act in contestants.items():
            begin = time.perf_counter()
            act()
            times[name].append(time.perf_counter() - begin)
    return {name: 1e6 * statistics.median(taken) for name, taken in times.items()}


def main() -> None:
    """Measure every scenario and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    scenarios = [scenario for scenario in SCENARIOS if arguments.only in scenario.name]
    print(f"{'simulators x agents':<20}{'learning':>12}{'one':>10}{'eight':>10}{'eight/one':>12}{'eight/learning':>16}")
    for scenario in scenarios:
        found = measure(scenario, arguments.seconds, arguments.rounds)
        against = {
            kind: statistics.median(b / a for a, b in zip(found[kind], found["eight"], strict=True))
            for kind in ("one", "learning")
        }
        rates = {kind: statistics.median(values) for kind, values in found.items()}
        print(
            f"{scenario.name:<20}{rates['learning']:>12.0f}{rates['one']:>10.0f}{rates['eight']:>10.0f}"
            f"{against['one']:>12.2f}{against['learning']:>16.2f}",
            flush=True,
        )
    print(f"\n{'64 rows, us':<20}{'one':>12}{'eight at once':>15}{'one by one':>12}")
    for scenario in scenarios:
        taken = passes(scenario, arguments.rounds)
        print(f"{scenario.name:<20}{taken['one']:>12.0f}{taken['eight at once']:>15.0f}{taken['one by one']:>12.0f}")


if __name__ == "__main__":
    main()
