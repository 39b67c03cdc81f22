"""An assessment of one attempt: a `match` or an `evaluate` run. Nothing is learnt; frozen policies play and are judged.

Simulators are given sittings one after the other (`worker.evaluation.games`). They are counted in the order of their
numbers, whichever ends first; what a simulator leaves behind unfinished, the next one plays anew. So an attempt that
begins where an earlier one had counted to goes on as if nothing had happened, and no game counts twice.
"""

import heapq
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from ludus.collector.arena import Arena
from ludus.collector.assessment import EndedGame
from ludus.collector.layout import UnsupportedSpec
from ludus.protocol.codes import CloseCode
from ludus.protocol.environment_parameters import Constant
from ludus.protocol.spec import BehaviorSpec, team_of
from server.config.assessment import AssessmentSettings, EvaluateSettings, MatchSettings, checkpoints_of
from server.config.config import NetworkSettings, RunConfig
from server.runs.states import StopReason
from worker.collectors.notices import SimulatorStarted, SittingEnded
from worker.collectors.pool import CollectorPool
from worker.collectors.programs import FrozenProgram, PolicyProgram
from worker.evaluation.evaluation import EvaluationJudge
from worker.evaluation.games import Counted, Game, Judge, Outcome, Sitting
from worker.evaluation.match import MatchJudge
from worker.learning.build import choose_collector_device, count_gpus
from worker.learning.networks.actor import Actor
from worker.trainer.initialization import InitializationError, load_policy
from worker.trainer.link import Assessed, Finished, Job, Match, MatchesPlayed, MatchesResumed, Seat
from worker.trainer.superior import Events, Superior

TELL_SECONDS: Final = 0.5
ARENA_STEPS: Final = 256
"""Nothing is recorded, but a behavior has an arena."""
OUTCOMES: Final[Mapping[int, Outcome]] = {1: "win", 2: "draw", 3: "loss"}
"""By their numbers in `ludus.v1.Outcome`."""


def judge_of(settings: AssessmentSettings, seed: int, saved: Mapping[str, Any] | None) -> Judge:
    """Return who judges; `saved` is what another attempt has counted."""
    match settings:
        case MatchSettings():
            return MatchJudge(settings, seed, saved)
        case EvaluateSettings():
            return EvaluationJudge(settings, seed, saved)


class Assessment:
    """Who plays which sitting, and what came of them."""

    def __init__(
        self, job: Job, config: RunConfig, settings: AssessmentSettings, superior: Superior, pool: CollectorPool
    ) -> None:
        self._job = job
        self._config = config
        self._settings = settings
        self._superior = superior
        self._events = Events(superior)
        self._pool = pool
        self._judge = judge_of(settings, job.seed, job.assessed)
        self._ladder = isinstance(settings, MatchSettings) and settings.ladder is not None
        self._steps: dict[str, int] = {}
        """For how many steps each checkpoint's policy had learnt."""
        self._teams: dict[str, list[int]] = {}
        """Of each simulator that can play, in order."""
        self._playing: dict[str, Sitting] = {}
        self._undone: list[int] = []
        """Numbers of sittings that were begun and broken off."""
        self._next = self._judge.next_sitting
        self._arrived: dict[int, tuple[Sitting, list[Game], list[int]]] = {}
        """Sittings that wait until those before them are counted, with their games and the simulator's teams."""
        self._matches: list[Match] = []
        self._told = 0.0
        self._news = True
        self.unusable: Finished | None = None
        """Set when nothing can be judged as it is configured."""

    @property
    def verdict(self) -> str | None:
        """What came out, once there are enough games."""
        return self._judge.verdict

    def resumed(self) -> None:
        """Tell which games earlier attempts have counted: what they played beyond is played anew."""
        if self._ladder:
            counted = int(self._judge.result()["games"])
            self._superior.post(MatchesResumed(newest={self._settings.behavior: counted}))

    def finish(self) -> Finished:
        """Tell what came out, and end well, whatever it is."""
        sentence = self._judge.sentence()
        self._events.tell(
            "assessment_decided", f"{sentence[:1].upper()}{sentence[1:]}.", data=dict(self._judge.result())
        )
        return Finished(outcome="succeeded", reason=StopReason.COMPLETED, detail=sentence)

    # Behaviors and simulators ------------------------------------------------------------------------------------

    def admit(self, spec: BehaviorSpec) -> None:
        """Let the policies play, if they fit what the simulators have announced; refuse every other behavior."""
        settings = self._settings
        if spec.behavior != settings.behavior:
            reason = f"the run judges policies of {settings.behavior!r}, and has none for {spec.behavior!r}"
            self._refuse(spec, CloseCode.BEHAVIOR_NOT_CONFIGURED, reason)
            return
        try:
            programs = [self._program(key, each, spec) for key, each in checkpoints_of(settings).items()]
        except (InitializationError, UnsupportedSpec) as error:
            self._refuse(spec, CloseCode.BAD_SPEC, str(error))
            self.unusable = Finished(outcome="failed", reason=StopReason.INVALID_CONFIG, detail=str(error))
            return
        memory = max(actor.memory_size for actor, _ in programs)
        first = programs[0][1]
        device = choose_collector_device(self._config.torch_settings, count_gpus())
        program = PolicyProgram(
            network_settings=first.network_settings,
            weights_size=first.weights.size,
            time_horizon=64,
            squashed=first.squashed,
            device=str(device),
            assessment=[each for _, each in programs],
        )
        self._pool.admit(spec, program, Arena.create(spec, ARENA_STEPS, memory_size=memory))
        names = ", ".join(f"{each} (step {self._steps[each]})" for each in checkpoints_of(settings).values())
        self._events.tell("behavior_admitted", f"Behavior {spec.behavior} is played by {names}")

    def _program(self, key: str, checkpoint: str, spec: BehaviorSpec) -> tuple[Actor, FrozenProgram]:
        """Return the policy of a checkpoint. Raise `InitializationError`, `UnsupportedSpec`."""
        where = f"{'match' if isinstance(self._settings, MatchSettings) else 'evaluate'}.{key}: checkpoint {checkpoint}"
        described, folder = self._job.policies.get(checkpoint), self._job.checkpoints.get(checkpoint)
        if described is None or folder is None:
            raise InitializationError(f"{where} was not handed to this trainer; create the run again")
        settings = NetworkSettings.model_validate(described["network_settings"])
        squashed = described["trainer_type"] == "sac"
        actor = Actor(spec, settings, torch.Generator(), squashed=squashed)
        try:
            self._steps[checkpoint] = load_policy(actor, spec.behavior, Path(folder))
        except InitializationError as error:
            raise InitializationError(f"{where}: {error}") from error
        return actor, FrozenProgram(settings.model_dump(mode="json"), squashed, actor.flatten())

    def started(self, notice: SimulatorStarted) -> None:
        """Give a simulator its first sitting, if it brings the teams that are needed."""
        spec = self._settings.behavior
        teams = sorted(team_of(name) for name in notice.behaviors if name.partition("?")[0] == spec)
        if not teams or self.unusable is not None:
            return
        self.left(notice.incarnation)  # where a newer session takes an older one's place
        if len(teams) != self._judge.teams:
            self._misfit(teams)
            return
        self._teams[notice.incarnation] = teams
        self._seat(notice.incarnation)

    def _misfit(self, teams: list[int]) -> None:
        """Tell of a simulator with too few or too many teams; give up where no other has played."""
        there = f"team{'s' if len(teams) > 1 else ''} {', '.join(map(str, teams))} of {self._settings.behavior}"
        if self._judge.teams == 1:
            message = f"A simulator brings {there}: an evaluation has one side only; let both play in a match"
        else:
            message = (
                f"A simulator brings {there}: a match is between two. Let the game announce both sides (`NAME?team=0`, "
                "`NAME?team=1`; Unity: Team Id in Behavior Parameters), and play neither of them itself"
            )
        self._events.tell("simulator_unfit", message, level="warning", data={"teams": teams})
        if not self._teams and not self._judge.next_sitting:
            self.unusable = Finished(outcome="failed", reason=StopReason.INVALID_CONFIG, detail=message)

    def left(self, incarnation: str) -> None:
        """Take note that a simulator is gone: others play its sitting."""
        self._teams.pop(incarnation, None)
        sitting = self._playing.pop(incarnation, None)
        if sitting is not None:
            heapq.heappush(self._undone, sitting.number)

    def _refuse(self, spec: BehaviorSpec, code: CloseCode, reason: str) -> None:
        self._pool.refuse(spec.behavior, code, reason)
        self._events.tell("behavior_refused", reason, level="error", data={"behavior": spec.name, "code": code})

    # Sittings ----------------------------------------------------------------------------------------------------

    def _seat(self, incarnation: str) -> None:
        """Let a simulator play the next sitting."""
        if self._undone:
            number = heapq.heappop(self._undone)
        else:
            number, self._next = self._next, self._next + 1
        sitting = self._judge.sitting(number)
        self._playing[incarnation] = sitting
        name = self._settings.seed_parameter
        parameters = {} if name is None or sitting.seed is None else {name: Constant(float(sitting.seed))}
        team = None if sitting.team is None else self._teams[incarnation][sitting.team]
        self._pool.sit(self._settings.behavior, incarnation, number, team, parameters)

    def sat(self, notice: SittingEnded) -> None:
        """Take the games of a sitting, and count what can be counted."""
        sitting = self._playing.get(notice.incarnation)
        if sitting is None or sitting.number != notice.sitting:
            return
        del self._playing[notice.incarnation]
        games = [_game(game) for game in notice.games]
        self._arrived[sitting.number] = sitting, games, self._teams[notice.incarnation]
        while self.verdict is None and self._judge.next_sitting in self._arrived:
            counted = self._judge.count(*self._arrived[self._judge.next_sitting][:2])
            _, _, teams = self._arrived.pop(self._judge.next_sitting - 1)
            self._news = True
            if self._ladder:
                self._matches += [self._match(each, teams) for each in counted]
        if self.verdict is None:
            self._seat(notice.incarnation)

    def _match(self, counted: Counted, teams: list[int]) -> Match:
        """Return a game as the ledger of a ladder takes it."""
        settings = self._settings
        assert isinstance(settings, MatchSettings)
        seats = [
            Seat(behavior=settings.behavior, team=team, snapshot=None, step=self._steps[each], checkpoint=each)
            for each, team in (
                (settings.candidate, teams[counted.place]),
                (settings.champion, teams[1 - counted.place]),
            )
        ]
        return Match(
            number=counted.number,
            behavior=settings.behavior,
            simulator=None,
            at=time.time(),
            step=0,
            seats=seats,
            outcome=counted.outcome,
            truncated=False,
            rated=True,
            elo=None,
        )

    def tell(self, *, at_once: bool = False) -> None:
        """Report where the assessment stands, if it has moved: twice a second, or at once."""
        now = time.monotonic()
        if not self._news or not (at_once or now >= self._told + TELL_SECONDS):
            return
        self._told, self._news = now, False
        if self._matches:
            self._superior.post(MatchesPlayed(matches=self._matches))
            self._matches = []
        result = dict(self._judge.result())
        games = int(result.get("games", result.get("episodes", 0)))
        self._superior.post(Assessed(games=games, result=result, state=dict(self._judge.state())))


def _game(game: EndedGame) -> Game:
    return Game(OUTCOMES[game.outcome], game.episode_return, game.length, game.truncated)
