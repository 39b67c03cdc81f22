"""The assessment of one attempt, a `match` or an `evaluate` run: frozen policies play and are evaluated.

Simulators are given batches one after the other (`worker.evaluation.evaluation`), which count in the order of their
numbers, whichever ends first. A batch that a simulator leaves unfinished is played again by the next one. So an attempt
continues where an earlier one has stopped counting, and no game counts twice.
"""

import heapq
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch

from ludus.collector.arena import Arena
from ludus.collector.commands import CHAMPION_ALONE, NetworkSpec, PolicySpec
from ludus.collector.messages import EndedGame, EvaluationEnded, SimulatorStarted
from ludus.collector.spec_checks import UnsupportedSpec
from ludus.config.assessment import AssessmentSettings, MatchSettings, checkpoints_of
from ludus.config.behavior import TRAINERS
from ludus.protocol.codes import CloseCode
from ludus.protocol.environment_parameters import Constant
from ludus.protocol.spec import BehaviorSpec, team_of
from ludus.schemas.states import StopReason
from server.ladders.refs import PlayedMatch, PlayedParticipant
from worker.evaluation.evaluation import Counted, EpisodeEvaluator, EvaluationBatch
from worker.evaluation.match import MatchEvaluator
from worker.learning.build import choose_collector_device, count_gpus
from worker.learning.networks.actor import Actor
from worker.onnx.graph import acting_graph
from worker.trainer.attempt import Attempt
from worker.trainer.initialization import InitializationError, load_policy
from worker.trainer.messages import Assessed, EventRecord, Finished, MatchesPlayed, MatchesResumed

REPORT_SECONDS: Final = 0.5
ARENA_STEPS: Final = 256
"""Nothing is recorded, but a behavior has an arena."""


class Assessment:
    """Gives simulators batches of games, and counts their results."""

    def __init__(self, attempt: Attempt, settings: AssessmentSettings) -> None:
        self._attempt = attempt
        self._settings = settings
        self._evaluator: MatchEvaluator | EpisodeEvaluator
        if isinstance(settings, MatchSettings):
            self._evaluator = MatchEvaluator(settings, attempt.job.seed, attempt.job.assessed)
        else:
            self._evaluator = EpisodeEvaluator(settings, attempt.job.seed, attempt.job.assessed)
        self._steps: dict[str, int] = {}
        """For how many steps each checkpoint's policy had learned."""
        self._teams: dict[str, list[int]] = {}
        """Of each simulator that can play, in order."""
        self._playing: dict[str, EvaluationBatch] = {}
        self._unfinished: list[int] = []
        """Numbers of batches that were begun and broken off."""
        self._next = self._evaluator.next_batch
        self._arrived: dict[int, tuple[EvaluationBatch, Sequence[EndedGame], list[int]]] = {}
        """Batches that wait until those before them are counted, with their games and the simulator's teams."""
        self._matches: list[PlayedMatch] = []
        self._reported = 0.0
        self._news = True
        self.unusable: Finished | None = None
        """Set when nothing can be evaluated as it is configured."""

    @property
    def _on_ladder(self) -> bool:
        """Whether the games are matches of a ladder."""
        return isinstance(self._settings, MatchSettings) and self._settings.ladder is not None

    def resumed(self) -> None:
        """Report which games earlier attempts have counted: those that they played beyond are played again."""
        if self._on_ladder:
            newest = {self._settings.behavior: self._evaluator.games}
            self._attempt.supervisor.post(MatchesResumed(newest=newest))

    def finished(self) -> Finished | None:
        """Return the end of the attempt once the verdict is known, or nothing can be evaluated; None before."""
        if self.unusable is not None or self._evaluator.verdict is None:
            return self.unusable
        sentence = self._evaluator.sentence()
        message = f"{sentence[:1].upper()}{sentence[1:]}."
        event = EventRecord(name="assessment_decided", message=message, data=self._evaluator.result())
        self._attempt.report_event(event)
        return Finished(outcome="succeeded", reason=StopReason.COMPLETED, detail=sentence)

    def register(self, spec: BehaviorSpec) -> None:
        """Register the behavior whose policies are evaluated, if they fit the announced spec; refuse others."""
        settings = self._settings
        if spec.behavior != settings.behavior:
            reason = f"the run evaluates policies of {settings.behavior!r}, and has none for {spec.behavior!r}"
            self._attempt.refuse(spec, CloseCode.BEHAVIOR_NOT_CONFIGURED, reason)
            return
        try:
            policies = [self._policy(key, checkpoint, spec) for key, checkpoint in checkpoints_of(settings).items()]
        except (InitializationError, UnsupportedSpec) as error:
            self._attempt.refuse(spec, CloseCode.BAD_SPEC, str(error))
            self.unusable = Finished.invalid_config(str(error))
            return
        memory = max(actor.memory_size for actor, _ in policies)
        weights = [actor.flatten() for actor, _ in policies]
        first = policies[0][1]
        device = choose_collector_device(self._attempt.config.torch_settings, count_gpus())
        policy = PolicySpec(
            network_settings=first.network_settings,
            weights_size=weights[0].size,
            time_horizon=64,
            head=first.head,
            device=str(device),
            evaluated=tuple(network for _, network in policies),
        )
        self._attempt.pool.admit(spec, policy, Arena.create(spec, ARENA_STEPS, memory_size=memory), weights)
        names = ", ".join(f"{checkpoint} (step {step})" for checkpoint, step in self._steps.items())
        self._attempt.report("behavior_admitted", f"Behavior {spec.behavior} is played by {names}")

    def _policy(self, key: str, checkpoint: str, spec: BehaviorSpec) -> tuple[Actor, NetworkSpec]:
        """Return the policy of a checkpoint. Raise `InitializationError`, `UnsupportedSpec`."""
        where = f"{'match' if isinstance(self._settings, MatchSettings) else 'evaluate'}.{key}: checkpoint {checkpoint}"
        trained, folder = self._attempt.job.policies.get(checkpoint), self._attempt.job.checkpoints.get(checkpoint)
        if trained is None or folder is None:
            raise InitializationError(f"{where} was not handed to this trainer; create the run again")
        settings, head = trained.network_settings, TRAINERS[trained.trainer_type].head
        actor = Actor(spec, settings, torch.Generator(), head=head)
        try:
            self._steps[checkpoint] = load_policy(actor, spec.behavior, Path(folder))
        except InitializationError as error:
            raise InitializationError(f"{where}: {error}") from error
        return actor, NetworkSpec(settings, head, acting_graph(actor))

    def started(self, event: SimulatorStarted) -> None:
        """Give a simulator its first batch, if it brings the teams that are needed."""
        spec = self._settings.behavior
        teams = sorted(team_of(name) for name in event.behaviors if name.partition("?")[0] == spec)
        if not teams or self.unusable is not None:
            return
        self.left(event.session_id)  # where a newer session takes an older one's place
        if len(teams) != self._evaluator.teams:
            brought = f"team{'s' if len(teams) > 1 else ''} {', '.join(map(str, teams))} of {spec}"
            if self._evaluator.teams == 1:
                message = f"A simulator brings {brought}: the games of this assessment have one side"
            else:
                message = (
                    f"A simulator brings {brought}: a match is between two. Let the game announce both sides (`NAME?"
                    "team=0`, `NAME?team=1`; Unity: Team Id in Behavior Parameters), and play neither of them itself"
                )
            self._attempt.report("simulator_unfit", message, level="warning", teams=teams)
            if not self._teams and not self._evaluator.next_batch:  # no other has played
                self.unusable = Finished.invalid_config(message)
            return
        self._teams[event.session_id] = teams
        self._assign(event.session_id)

    def left(self, session_id: str) -> None:
        """Remove a simulator: another one plays its batch."""
        self._teams.pop(session_id, None)
        batch = self._playing.pop(session_id, None)
        if batch is not None:
            heapq.heappush(self._unfinished, batch.number)

    def _assign(self, session_id: str) -> None:
        """Give a simulator the next batch."""
        if self._unfinished:
            number = heapq.heappop(self._unfinished)
        else:
            number, self._next = self._next, self._next + 1
        batch = self._evaluator.batch(number)
        self._playing[session_id] = batch
        name = self._settings.seed_parameter
        parameters = {} if name is None or batch.seed is None else {name: Constant(float(batch.seed))}
        alone = batch.team is None or batch.team == CHAMPION_ALONE
        team = batch.team if alone else self._teams[session_id][batch.team or 0]
        self._attempt.pool.begin_evaluation(self._settings.behavior, session_id, number, team, parameters)

    def batch_ended(self, event: EvaluationEnded) -> None:
        """Take the games of a batch, and count those whose predecessors are counted."""
        batch = self._playing.get(event.session_id)
        if batch is None or batch.number != event.episode_batch:
            return
        del self._playing[event.session_id]
        self._arrived[batch.number] = batch, event.games, self._teams[event.session_id]
        while self._evaluator.verdict is None and self._evaluator.next_batch in self._arrived:
            counted = self._evaluator.count(*self._arrived[self._evaluator.next_batch][:2])
            _, _, teams = self._arrived.pop(self._evaluator.next_batch - 1)
            self._news = True
            if self._on_ladder:
                self._matches += [self._match(game, teams) for game in counted]
        if self._evaluator.verdict is None:
            self._assign(event.session_id)

    def _match(self, counted: Counted, teams: list[int]) -> PlayedMatch:
        """Return a game as a match of the ladder."""
        number, place, outcome = counted
        settings = self._settings
        assert isinstance(settings, MatchSettings)
        participants = tuple(
            PlayedParticipant(
                behavior=settings.behavior,
                team=team,
                snapshot=None,
                step=self._steps[checkpoint],
                checkpoint=checkpoint,
            )
            for checkpoint, team in ((settings.candidate, teams[place]), (settings.champion, teams[1 - place]))
        )
        return PlayedMatch(
            number=number,
            behavior=settings.behavior,
            simulator=None,
            at=time.time(),
            step=0,
            participants=participants,
            outcome=outcome,
            truncated=False,
            rated=True,
            elo=None,
        )

    def report(self, *, at_once: bool = False) -> None:
        """Report the present result, if it has changed: twice a second, or at once."""
        now = time.monotonic()
        if not self._news or not (at_once or now >= self._reported + REPORT_SECONDS):
            return
        self._reported, self._news = now, False
        if self._matches:
            self._attempt.supervisor.post(MatchesPlayed(matches=self._matches))
            self._matches = []
        evaluator = self._evaluator
        report = Assessed(games=evaluator.games, result=evaluator.result(), state=evaluator.state())
        self._attempt.supervisor.post(report)
