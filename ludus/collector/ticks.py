"""Batch ticks: when the policy runners of a collector answer, and the order of its reports to the learner."""

import asyncio
from collections.abc import Callable

import structlog

from ludus.collector import messages
from ludus.collector.carriers.connection import LearnerConnection
from ludus.collector.evaluation import EvaluationRunner
from ludus.collector.matches import MatchRecorder
from ludus.collector.messages import Kind, pack_numbered
from ludus.collector.opponents import OpponentRunner
from ludus.collector.runners import LearningRunner, PolicyRunner
from ludus.collector.snapshots.agents import restore_returning
from ludus.collector.stats import StatSums

log = structlog.get_logger()

PROMPT_SEGMENTS = 64
"""So many closed segments are delivered at once."""


class BatchTicks:
    """The turns of one collector process."""

    def __init__(
        self,
        link: LearnerConnection,
        stats: StatSums,
        rested: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """`rested` is called after all turns that were due, `failed` with a mistake of ours."""
        self._stats = stats
        self._link = link
        self.reports = True
        """Whether the learner may be told: not between the snapshot for a checkpoint and its end."""
        self._rested = rested
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._due: list[PolicyRunner] = []
        self.opponents_of: dict[int, tuple[OpponentRunner, MatchRecorder]] = {}
        """Opponents and match recorder of a runner that learns, by its number."""

    def schedule(self, runner: PolicyRunner) -> None:
        """Run a runner after the messages that are ready now."""
        if not self._due:
            self._loop.call_soon(self._run_due)
        if runner not in self._due:
            self._due.append(runner)

    def _run_due(self) -> None:
        due, self._due = self._due, []
        due.sort(key=lambda runner: isinstance(runner, LearningRunner))  # opponents' steps count before a round ends
        try:
            for runner in due:
                self._run(runner)
            self._rested()
        except Exception as error:  # the edge of the process: a runner in an unknown state must not go on
            log.exception("runner_failed")
            self._failed(error)

    def _run(self, runner: PolicyRunner) -> None:
        last = runner.staged[-1].agent_index.simulator if runner.staged else None
        missing_blocks = restore_returning(runner) if runner.returning else 0
        report = runner.run()
        if runner.waiting or runner.waits.reason is not None:  # in most turns, neither
            runner.observe_waits(self._loop.time(), last)
        if isinstance(runner, EvaluationRunner):
            runner.recorder.take_episodes()
            for session_id, episode_batch, games in runner.episode_batches.take():
                self._link.tell(messages.EvaluationEnded(runner.behavior, session_id, episode_batch, tuple(games)))
        if not isinstance(runner, LearningRunner):
            return
        if missing_blocks and not runner.wanted_blocks:
            runner.wanted_blocks = report.want_blocks = True
        if report.want_blocks:
            self._link.tell(messages.WantBlocks(runner.number))
        if report.deliver or runner.recorder.segments.waiting >= PROMPT_SEGMENTS:
            self.deliver(runner)
        number, progress = runner.quota.number, runner.quota.take_report() if self.reports else None
        if number is not None and progress is not None:
            self._link.tell(messages.QuotaProgress(runner.number, number, *progress))

    # Reports ---------------------------------------------------------------------------------------------------

    def deliver(self, runner: LearningRunner) -> None:
        """Send the learner the episodes and segments of a runner."""
        if not self.reports:
            return  # the snapshot goes with the deliveries before it
        if runner.number in self.opponents_of:
            opponent_runner, match_recorder = self.opponents_of[runner.number]
            counts, matches = opponent_runner.take_counts(), match_recorder.take()
            if any(counts):
                self._link.tell(messages.StepsPlayed(opponent_runner.behavior, *counts))
            if matches:
                self._link.tell(messages.MatchesEnded(opponent_runner.behavior, tuple(matches)))
        episodes = runner.recorder.take_episodes()
        if episodes is not None:
            self.report_stats()  # so that a summary has the numbers of the episodes that it has
            self._link.send(Kind.EPISODES, pack_numbered(runner.number, episodes), later=True)
        if runner.unrecorded_steps and runner.number not in self.opponents_of:
            # After the episodes: a summary of these steps has those that ended in them.
            self._link.tell(messages.StepsPlayed(runner.behavior, runner.unrecorded_steps))
            runner.unrecorded_steps = 0
        segments = runner.recorder.segments.take()
        if segments is not None:
            free = self._link.deliver(runner.number, runner.recorder.arena, segments)
            runner.recorder.segments.blocks.extend(free)

    def report_stats(self) -> None:
        """Send the learner the numbers that simulators have reported."""
        rows = self._stats.take()
        if rows:
            self._link.tell(messages.Stats(rows))
