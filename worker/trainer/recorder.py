"""Turns measurements into metrics: the only place that names them, but for the one that the server reads.

A point is written for every multiple of `summary_freq` steps that a behavior crosses; its value is the mean of the
measurements since the last one (or their sum, or the newest), as in ML-Agents' summaries. A summary may cover many
updates (SAC) or none (a buffer larger than `summary_freq`): each update counts once in its mean, and a period without
one has no points of updates. Evaluations are points of their own, at their own step. Names are ML-Agents' where
ML-Agents has the metric.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import fmean, pstdev

from ludus.collector.messages import StatsReported
from ludus.protocol import batches as wire
from ludus.schemas import STEPS_PER_SECOND, ScoredBy
from server.metrics.points import MetricPoint
from worker.experience.state import State
from worker.trainer.messages import Metrics

CUMULATIVE_REWARD = "Environment/Cumulative Reward"
CUMULATIVE_REWARD_STD = "Environment/Cumulative Reward Std"
GROUP_REWARD = "Environment/Group Cumulative Reward"
EVALUATION_REWARD = "Evaluation/Cumulative Reward"
EVALUATION_LENGTH = "Evaluation/Episode Length"
EPISODE_LENGTH = "Environment/Episode Length"
EXTRINSIC_REWARD = "Policy/Extrinsic Reward"
POLICY_VERSION = "Policy/Version"
MOST_POINTS = 1024
"""Summaries that are remembered, in case a checkpoint has their steps but has not learned from them."""
LEAST_SECONDS = 0.01
"""Segments that waited for an update come in one burst: a speed is measured over at least so long."""
LAST_EPISODES = (20, 100)
"""Fewest and most episodes behind a checkpoint's return: those since the newest update, the policy in the file, and
earlier ones up to the fewest, as the return of a few episodes is mostly luck."""


class Aggregation(Enum):
    """How the values of one summary period become one point."""

    MEAN = "mean"
    LAST = "last"
    SUM = "sum"


REPORTED = {wire.Aggregation.MOST_RECENT: Aggregation.LAST, wire.Aggregation.SUM: Aggregation.SUM}
"""Aggregations of reported numbers that are not means."""


@dataclass
class _Series:
    aggregation: Aggregation
    total: float = 0.0
    count: int = 0
    last: float = 0.0

    def value(self) -> float:
        if self.aggregation is Aggregation.LAST:
            return self.last
        return self.total / self.count if self.aggregation is Aggregation.MEAN else self.total


class Recorder:
    """One behavior's measurements on their way to the run's metrics."""

    def __init__(
        self,
        behavior: str,
        summary_freq: int,
        post: Callable[[Metrics], None],
        step: int = 0,
        strength: float | None = 1.0,
        *,
        groups: bool = False,
        state_metrics: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """`strength` is the extrinsic signal's, None without one; `groups`: whether agents are trained as groups.

        `state_metrics` returns the metrics of a summary that are not measured: lessons, the learning team.
        """
        self.behavior = behavior
        self._strength = strength
        self._groups = groups
        self._state_metrics = state_metrics
        self._summary_freq = summary_freq
        self._post = post
        self._series: dict[str, _Series] = {}
        self._boundary = step - step % summary_freq
        self._summary_returns: list[float] = []
        self._last_returns: deque[tuple[int, float]] = deque(maxlen=LAST_EPISODES[1])
        """Step and return of the last episodes."""
        self._episodes_of_policy = 0
        """Episodes since the newest update."""
        self._evaluation: tuple[int, Sequence[float]] | None = None
        """Step and returns of the evaluation since the last checkpoint, if there was one."""
        self._step = step
        self._since = (step, time.monotonic())
        self._written: deque[tuple[int, dict[str, float]]] = deque(maxlen=MOST_POINTS)

    def episode(self, episode_return: float, length: int, group_return: float = 0.0) -> None:
        """Record a finished episode: undiscounted sums of the agent's own and its group's rewards, and its decisions.

        The extrinsic reward (`Policy/Extrinsic Reward`) is both sums times the signal's strength.
        An agent that leaves before its group has the group rewards of its own life in its sum.
        """
        self.measure(CUMULATIVE_REWARD, episode_return)
        self.measure(EPISODE_LENGTH, length)
        if self._groups:
            self.measure(GROUP_REWARD, group_return)
        if self._strength is not None:
            self.measure(EXTRINSIC_REWARD, self._strength * (episode_return + group_return))
        self._summary_returns.append(episode_return)
        self._last_returns.append((self._step, episode_return))
        self._episodes_of_policy += 1

    def evaluated(self, step: int, returns: Sequence[float], lengths: Sequence[int]) -> None:
        """Write the points of an evaluation of the policy of `step`, over some episodes."""
        self.write(step, {EVALUATION_REWARD: fmean(returns), EVALUATION_LENGTH: fmean(lengths)})
        self._evaluation = (step, returns)

    def measure(self, key: str, value: float, aggregation: Aggregation = Aggregation.MEAN) -> None:
        """Record one value under `key`."""
        self._add(key, aggregation, value, 1, value)

    def _add(self, key: str, aggregation: Aggregation, total: float, count: int, last: float) -> None:
        series = self._series.setdefault(key, _Series(aggregation))
        series.total += total
        series.count += count
        series.last = last

    def learned(self, measurements: Mapping[str, float]) -> None:
        """Record the measurements of an update: the policy is another one from now on."""
        self._episodes_of_policy = 0
        for key, value in measurements.items():
            self.measure(key, value)

    def reported(self, stats: StatsReported) -> None:
        """Record numbers that simulators reported under a key of their own."""
        aggregation = REPORTED.get(stats.aggregation, Aggregation.MEAN)
        self._add(stats.key, aggregation, stats.total, stats.count, stats.last)

    def advance(self, step: int) -> None:
        """Write a summary if `step` has crossed a multiple of `summary_freq`."""
        self._step = step
        boundary = step - step % self._summary_freq
        if boundary <= self._boundary:
            return
        self._boundary = boundary
        then, since = self._since
        now = time.monotonic()
        if now - since >= LEAST_SECONDS:
            self._since = (step, now)
            self.measure(STEPS_PER_SECOND, (step - then) / (now - since))
        returns, self._summary_returns = self._summary_returns, []
        if returns:
            self.measure(CUMULATIVE_REWARD_STD, pstdev(returns))
        series, self._series = self._series, {}
        self.write(boundary, {**{key: measured.value() for key, measured in series.items()}, **self._state_metrics()})

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write points at once, at their own step."""
        moment = time.time()
        self._written.append((step, dict(values)))
        points = [
            MetricPoint(behavior=self.behavior, key=key, step=step, at=moment, value=value)
            for key, value in values.items()
        ]
        self._post(Metrics(points=points))

    def state(self, learned: int) -> State:
        """Return the measurements that are not written yet, and the points of steps beyond `learned`.

        For a checkpoint from which these steps are not collected again: points beyond its step are superseded.
        """
        return {
            "boundary": self._boundary,
            "series": {
                key: [measured.aggregation.value, measured.total, measured.count, measured.last]
                for key, measured in self._series.items()
            },
            "summary_returns": list(self._summary_returns),
            "written": [[step, values] for step, values in self._written if step > learned],
        }

    def restore(self, state: State) -> None:
        """Go on from the result of `state`, and write its points again."""
        self._boundary = state["boundary"]
        self._series = {
            key: _Series(Aggregation(kind), total, count, last)
            for key, (kind, total, count, last) in state["series"].items()
        }
        self._summary_returns = list(state["summary_returns"])
        for step, values in state["written"]:
            self.write(step, values)

    def take_checkpoint_return(self) -> tuple[float, ScoredBy] | None:
        """Return how good the present policy is, by an evaluation since the last call or the last episodes, if any."""
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is not None:
            step, returns = evaluation
            return fmean(returns), ScoredBy(kind="evaluation", episodes=len(returns), from_step=step)
        last = list(self._last_returns)[-max(self._episodes_of_policy, LAST_EPISODES[0]) :]
        if not last:
            return None
        scored_by = ScoredBy(kind="episodes", episodes=len(last), from_step=last[0][0])
        return fmean(value for _, value in last), scored_by
