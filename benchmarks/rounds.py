"""The cost of a round: the way from a collector to the learner and back, for rounds of a few steps (SAC).

    python benchmarks/rounds.py [--seconds 2] [--sizes 12000,60,12,10,1]

One simulator with 12 agents, one collector, and a learner that computes nothing: it gathers each round, publishes
weights and grants the next one (lockstep). Messages are answered whole, so rounds of less than 12 steps borrow from the
next ones. The cost of a round is the time that it adds to that of its messages with rounds of 12,000 steps. On a busy
machine look at the processor time.
"""

import argparse
import multiprocessing
import sys
import time
from collections import defaultdict
from pathlib import Path

from ludus.config.network import NetworkSettings
from worker.experience.rollout import gather

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import psutil

from benchmarks.collector import CONTINUOUS, HORIZON, Scenario, run_client
from ludus.collector.arena import Arena
from ludus.collector.commands import PolicySpec
from ludus.collector.layout import ActorLayout
from ludus.collector.messages import BehaviorAnnounced
from ludus.collector.segments import Segments
from ludus.collector.settings import CollectorSettings
from worker.collectors.events import RoundCollected, SegmentsDelivered
from worker.collectors.pool import CollectorPool

NETWORK = NetworkSettings(hidden_units=128, num_layers=2)
SCENARIO = Scenario("1 x 12 continuous", 1, 12, CONTINUOUS)


class Learner:
    """Gathers, publishes and grants, round after round."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rounds = 0
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.pool = CollectorPool(CollectorSettings("bench", 1, 7))
        self.port = self.pool.start()[0].port
        self._arena = Arena.create(SCENARIO.spec, 3 * max(size, HORIZON))
        self._segments: defaultdict[int, list[Segments]] = defaultdict(list)
        self._weights = np.random.default_rng(0).standard_normal(ActorLayout.of(SCENARIO.spec, NETWORK).flat_size)

    def handle(self, notice: object) -> None:
        """Do the work of `worker.trainer.learner`, except for the learning."""
        name = SCENARIO.spec.behavior
        match notice:
            case BehaviorAnnounced():
                program = PolicySpec(NETWORK, len(self._weights), HORIZON)
                self.pool.admit(notice.spec, program, self._arena)
                self.pool.publish(name, 0, self._weights.astype(np.float32))
                self.pool.grant(name, 0, self.size)
            case SegmentsDelivered():
                for number, segments in notice.segments.by_round():
                    self._segments[number].append(segments)
            case RoundCollected():
                segments = Segments.joined(self._segments.pop(notice.round))
                marks = [time.thread_time()]
                gather(self._arena, segments)
                marks.append(time.thread_time())
                self.pool.reclaim(name, segments)
                marks.append(time.thread_time())
                self.pool.publish(name, notice.round + 1, self._weights.astype(np.float32))
                marks.append(time.thread_time())
                self.pool.grant(name, notice.round + 1, self.size)
                marks.append(time.thread_time())
                for part, begin, end in zip(("gather", "reclaim", "publish", "grant"), marks, marks[1:], strict=False):
                    self.seconds[part] += end - begin
                self.rounds += 1


def measure(size: int, seconds: float) -> tuple[float, float, dict[str, float]]:
    """Return messages and rounds per second, and seconds of processor time per round by part."""
    context = multiprocessing.get_context("spawn")
    turns, theirs = context.Pipe()
    answers, ours = context.Pipe(duplex=False)
    client = context.Process(target=run_client, args=(SCENARIO, theirs, ours, seconds), daemon=True)
    client.start()
    answers.recv()
    learner = Learner(size)
    (collector,) = [child for child in psutil.Process().children() if "worker.collectors" in child.cmdline()]
    try:
        for _ in range(2):  # the first turn warms up
            before, learner.seconds = learner.rounds, defaultdict(float)
            used = time.process_time(), _busy(collector)
            turns.send((learner.port, True))
            while not answers.poll(0):
                for notice in learner.pool.poll(0.05):
                    learner.handle(notice)
            messages = sum(answers.recv())
        rounds = learner.rounds - before
        learner.seconds["whole learner"] = time.process_time() - used[0]
        learner.seconds["whole collector"] = _busy(collector) - used[1]
        parts = {part: spent / max(rounds, 1) for part, spent in learner.seconds.items()}
        return messages / seconds, rounds / seconds, parts
    finally:
        turns.send(None)
        learner.pool.close("run_finished", "the benchmark is over", rejoin=False)
        client.join()


def _busy(process: psutil.Process) -> float:
    """Processor seconds that a process has used."""
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    """Measure every size and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--sizes", default="12000,120,60,12,10,5,1", help="steps per round; the first is the yardstick")
    arguments = parser.parse_args()
    yardstick = 0.0
    print(f"{'steps a round':>14}{'messages/s':>12}{'rounds/s':>10}{'µs a round':>12}   processor time of a round, µs")
    for size in map(int, arguments.sizes.split(",")):
        messages, rounds, parts = measure(size, arguments.seconds)
        yardstick = yardstick or 1 / messages
        cost = (1 - messages * yardstick) / rounds * 1e6
        told = ", ".join(f"{part} {spent * 1e6:.0f}" for part, spent in parts.items())
        print(f"{size:>14}{messages:>12.0f}{rounds:>10.0f}{cost:>12.0f}   {told}", flush=True)


if __name__ == "__main__":
    main()
