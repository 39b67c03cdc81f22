"""Self-play of one attempt: teams of simulators, whose turn it is to learn, and reports of matches and ratings."""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ludus.collector.messages import MatchesEnded, StepsPlayed
from ludus.protocol.spec import team_of
from server.ladders.refs import PlayedMatch
from worker.collectors.events import TeamAnnounced
from worker.learning.networks.actor import Actor
from worker.selfplay.controller import GhostController
from worker.selfplay.ghost import Ghost
from worker.trainer.attempt import Attempt
from worker.trainer.health.reports import HealthReports
from worker.trainer.initialization import InitializationError
from worker.trainer.learner import BehaviorLearner
from worker.trainer.messages import MatchesPlayed, MatchesResumed, RunAdvanced, SelfPlayStatus

MATCHES_SECONDS: Final = 0.5
STATUS_SECONDS: Final = 2.0
"""How often ratings are reported, if they have changed; a change of the learning team is reported at once."""


class SelfPlayCoordinator:
    """Passes events of self-play to the `GhostController`, and reports matches, teams and ratings."""

    def __init__(self, attempt: Attempt, health: HealthReports) -> None:
        self._attempt = attempt
        self._health = health
        self.ghosts = GhostController(
            attempt.pool, attempt.simulators, attempt.report_event, attempt.config.simulators.grace_seconds
        )
        self._teams: dict[str, set[int]] = {}
        """Behavior -> the teams of it that simulators have announced."""
        self._matches: list[PlayedMatch] = []
        """Matches that are not reported yet."""
        self._next_matches = 0.0
        self._reported: SelfPlayStatus | None = None
        self._next_status = 0.0
        self._followed: dict[str, RunAdvanced] = {}
        """The newest checkpoint of each run that opponents are taken from, by its id or name in the configuration."""

    def run_advanced(self, message: RunAdvanced) -> None:
        """Take the policies in a newer checkpoint of a run as opponents, in place of those of the one before."""
        former = self._followed.get(message.run)
        self._followed[message.run] = message
        if former is not None:
            shutil.rmtree(former.folder, ignore_errors=True)
        for learner in self._attempt.learners.values():
            if isinstance(learner, BehaviorLearner) and (ghost := self.ghosts.ghost(learner.name)) is not None:
                self._follow(ghost, learner.algorithm.actor, message)

    def catch_up(self, ghost: Ghost, actor: Actor) -> None:
        """Take the newest policies of all followed runs as opponents of a behavior that begins."""
        for message in self._followed.values():
            self._follow(ghost, actor, message)

    def _follow(self, ghost: Ghost, actor: Actor, message: RunAdvanced) -> None:
        behavior, checkpoint = ghost.behavior, message.checkpoint
        try:
            added = ghost.follow(message.run, checkpoint, Path(message.folder), actor)
        except InitializationError as error:
            text = f"Run {message.run} gives {behavior} no opponents: {error}"
            self._attempt.report("opponents_refused", text, level="warning", behavior=behavior, checkpoint=checkpoint)
            return
        if added:
            self.ghosts.opponents_changed(behavior)
            text = f"New opponents of {behavior}: {len(added)} of run {message.run}, checkpoint {checkpoint}"
            self._attempt.report(
                "opponents_followed", text, behavior=behavior, run=message.run, checkpoint=checkpoint, count=len(added)
            )

    def team_announced(self, event: TeamAnnounced) -> None:
        """Add a team to self-play; report several teams of a behavior without self-play, which train one policy."""
        behavior, team = event.behavior, event.team
        teams = self._teams.setdefault(behavior, set())
        teams.add(team)
        learner = self._attempt.learners.get(behavior)
        if learner is not None and team != learner.spec.team:  # that team was announced with the behavior itself
            self._attempt.report(
                "team_announced",
                f"Simulators bring team {team} of {behavior}, too",
                behavior=behavior,
                team=team,
                name=f"{behavior}?team={team}",
            )
        if self.ghosts.ghost(behavior) is not None:
            self.ghosts.team_announced(behavior, team)
            if self._attempt.simulators.is_played(behavior):
                self.ghosts.begin()
        elif len(teams) == 2 and isinstance(learner, BehaviorLearner):
            self._attempt.report(
                "teams_train_together",
                f"Simulators have brought several teams of {behavior}, which has no self_play: all of them "
                "train one policy together. Enable self_play to train adversarial games",
                level="warning",
                behavior=behavior,
            )

    def resumed(self) -> None:
        """Report, per behavior, the newest match that the checkpoint counts; without a checkpoint none is counted."""
        counted = {
            behavior: state["self_play"]["ghost"]["counters"]["matches"]
            for behavior, state in self._attempt.restored.items()
            if "self_play" in state
        }
        self._attempt.supervisor.post(MatchesResumed(newest=counted))

    def started(self, session_id: str, names: Sequence[str]) -> None:
        """Set the behaviors and teams that a simulator plays, by these names; called again when it adds some."""
        teams = [(name.partition("?")[0], team_of(name)) for name in names]
        self.ghosts.plays(session_id, teams)
        if any(self.ghosts.ghost(behavior) for behavior, _ in teams):
            self.ghosts.begin()

    def ended(self, event: MatchesEnded) -> None:
        """Rate matches, and keep them for the next report."""
        step = self._attempt.learners[event.behavior].step
        played = self.ghosts.ended(event, step, time.time())
        self._matches += played
        if (monitor := self._health.monitor(event.behavior)) is not None:
            for match in played:
                monitor.evidence.matches.add(match)

    def opponents_played(self, event: StepsPlayed) -> None:
        """Count what the teams that do not learn have played; of a behavior without such teams, nothing."""
        if self.ghosts.ghost(event.behavior) is None:
            return  # it has learned, and plays on
        self.ghosts.played(event.behavior, event.steps)
        if (monitor := self._health.monitor(event.behavior)) is not None:
            monitor.evidence.matches.opponents += event.episodes
            monitor.evidence.matches.opponents_won += event.won

    def take_turns(self) -> None:
        """Pass the turn on and exchange opponents where that is due, and let learners whose turn has come go on."""
        self.ghosts.watch(time.monotonic())
        self.ghosts.exchange()
        for learner in self._attempt.learners.values():
            if isinstance(learner, BehaviorLearner):
                learner.take_turn()

    def report(self, *, at_once: bool = False) -> None:
        """Report new matches, and the learning team and ratings if they have changed: at their paces, or at once."""
        now = time.monotonic()
        team, before = self.ghosts.learning, self._reported
        is_due = at_once or before is None or before.learning_team != team or now >= self._next_status
        if team is not None and is_due:
            self._next_status = now + STATUS_SECONDS
            status = SelfPlayStatus(learning_team=team, elo=self.ghosts.ratings)
            if status != before:
                self._reported = status
                self._attempt.supervisor.post(status)
        if self._matches and (at_once or now >= self._next_matches):
            self._next_matches = now + MATCHES_SECONDS
            self._attempt.supervisor.post(MatchesPlayed(matches=self._matches))
            self._matches = []
