"""Self-play on games whose equilibria are known, measured exactly, with whole trainers and real collectors.

Exploitability is what a best answer wins (`examples/games`), computed from the probabilities of a policy. In
rock-paper-scissors a policy that learns fast to beat the newest one circles around the equilibrium. With smaller steps
and more entropy it comes to rest near it, if its opponents are new enough; with an exploiter also if they are old.
docs/self-play.md has the figures.
"""

import runpy
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ludus.config.behavior import PPOConfig
from ludus.config.network import NetworkSettings
from ludus.config.run import RunConfig
from ludus.protocol.spec import BehaviorSpec
from ludus.sdk import Simulation
from tests.worker.rollouts import make_rollout
from tests.worker.selfplay.match_day import Recorder
from worker.learning.build import Demonstrations, build_algorithm
from worker.learning.networks.actor import Actor
from worker.trainer.initialization import load_policy
from worker.trainer.loop import Trainer
from worker.trainer.messages import CheckpointWritten, Command, Finished, Job, Message, RunAdvanced

pytestmark = [pytest.mark.learning, pytest.mark.hours, pytest.mark.slow, pytest.mark.timeout(1800)]

GAMES = Path(__file__).resolve().parent.parent.parent / "examples/games"
scissors, kuhn_poker = (
    SimpleNamespace(**runpy.run_path(str(GAMES / f"{name}.py"))) for name in ("scissors", "kuhn_poker")
)

SPEC = scissors.Scissors.behaviors[0]

NETWORK = {"num_layers": 1, "hidden_units": 16}
SIMULATORS, TABLES = 4, 128
ROUND = SIMULATORS * TABLES
"""A game at each table. Its opponents have answered before the round begins, as they were before the last update."""
UPDATES = 120
LATEST = {"play_against_latest_model_ratio": 1.0}
OLD = {"play_against_latest_model_ratio": 0.0, "window": 1, "save_steps": 8 * ROUND - 1}
"""The newest snapshot alone, and a new one after 8 updates."""
FAST: dict[str, Any] = {"learning_rate": 1e-3, "beta": 0.05}
CALM: dict[str, Any] = {"learning_rate": 3e-4, "learning_rate_schedule": "linear", "beta": 0.2}
EXPLOITER: dict[str, Any] = {"learning_rate": 1e-3, "learning_rate_schedule": "constant"}
SEEDS = [1, 2, 3]


def section(steps: int, self_play: dict[str, Any], **hyperparameters: Any) -> dict[str, Any]:
    """Return the configuration of a behavior, with 60 checkpoints."""
    return {
        "hyperparameters": {
            "batch_size": ROUND // 4,
            "buffer_size": ROUND,
            "learning_rate_schedule": "constant",
            "beta_schedule": "constant",
            "epsilon_schedule": "constant",
            **hyperparameters,
        },
        "network_settings": NETWORK,
        "max_steps": steps,
        "checkpoint_interval": steps // 60,
        "summary_freq": steps,
        "time_horizon": 8,
        "self_play": {"save_steps": ROUND - 1, "team_change": 10**9, "swap_steps": ROUND // 2, **self_play},
    }


class Followed(Recorder):
    """Gives the checkpoints of its run to the trainer of another run."""

    def __init__(self, name: str, folder: Path, *games: Simulation) -> None:
        super().__init__(*games)
        self.name = name
        self.follower: Recorder | None = None
        self._folder = folder

    def post(self, message: Message) -> None:
        """Take a report."""
        super().post(message)
        if isinstance(message, CheckpointWritten) and self.follower is not None:
            number = len(self.checkpoints)
            folder = shutil.copytree(message.folder, self._folder / f"{self.name}-{number}")
            checkpoint = f"ckpt_{number:026d}"
            self.follower.orders.append(RunAdvanced(run=self.name, checkpoint=checkpoint, folder=str(folder)))


def train(recorder: Recorder, behavior: str, document: dict[str, Any], folder: Path, seed: int) -> Finished:
    """Train to the end, or until it is cancelled."""
    config: Any = {"behaviors": {behavior: document}}
    job = Job(run_id="alone", attempt=1, config=config, seed=seed, scratch=str(folder), collectors=1)
    finished = Trainer(job, recorder, []).run()
    recorder.join()
    return finished


def chances(actor: Actor, observations: np.ndarray) -> np.ndarray:
    """Return the probabilities of a policy's actions, (observations, actions)."""
    with torch.no_grad():
        head, _ = actor(actor.encode([torch.from_numpy(observations)]))
        return np.asarray(torch.softmax(actor.parts(head).logits.double(), 1))


def probabilities(folders: Sequence[Path], spec: BehaviorSpec, observations: np.ndarray) -> np.ndarray:
    """Return what the policies of checkpoints do with some observations: (checkpoints, observations, actions)."""
    actor = Actor(spec, NetworkSettings.model_validate(NETWORK), torch.Generator())
    rows = []
    for folder in folders:
        load_policy(actor, spec.behavior, folder)
        rows.append(chances(actor, observations))
    return np.array(rows)


class Learner:
    """Learns rock-paper-scissors without trainer and collectors, against opponents that it is given."""

    def __init__(self, seed: int, hyperparameters: dict[str, Any]) -> None:
        document = section(UPDATES * ROUND, {}, **hyperparameters)
        config = RunConfig.model_validate({"behaviors": {"Scissors": document}}).behavior("Scissors")
        assert isinstance(config, PPOConfig)
        self._algorithm = build_algorithm(config, SPEC, torch.device("cpu"), seed, Demonstrations({}, {}))
        self._rng = np.random.default_rng(seed)
        self.policies = [self._policy()]
        """That of before the first update, and those of after each."""
        self._met: list[np.ndarray] = []

    def _policy(self) -> np.ndarray:
        return chances(self._algorithm.actor, np.ones((1, 1), np.float32)).reshape(3)

    def learn(self, newest: Sequence[np.ndarray], age: int) -> None:
        """Update the policy on a round against opponents, equal shares, as they were `age` rounds ago; (3,) each."""
        self._met.append(np.array(newest))
        opponents = self._met[max(len(self._met) - 1 - age, 0)]
        own = self._rng.choice(3, ROUND, p=self.policies[-1])
        shown = np.concatenate([self._rng.choice(3, ROUND // len(opponents), p=policy) for policy in opponents])
        rollout = make_rollout(
            observations=[np.ones((ROUND, 1), np.float32)],
            rewards=scissors.PAYOFFS[own, shown],
            discrete=own[:, np.newaxis],
            log_probs=np.log(self.policies[-1][own])[:, np.newaxis],
            masks=np.ones((ROUND, 3), bool),
            version=self._algorithm.version,
        )
        self._algorithm.update(rollout, len(self.policies) * ROUND)
        self.policies.append(self._policy())


def play_exactly(
    seed: int, age: int, turns: tuple[int, int], exploiter: dict[str, Any] | None, **hyperparameters: Any
) -> np.ndarray:
    """Train against opponents of an age in rounds; return the policies, (1 + updates, 3).

    They are the policy itself and, with the same share, an exploiter with these hyperparameters; `turns` are the
    updates of both.
    """
    main = Learner(seed, hyperparameters)
    other = Learner(seed + 1000, hyperparameters | (exploiter or {}))
    while len(main.policies) <= UPDATES:
        for _ in range(turns[0]):
            main.learn([main.policies[-1], *([] if exploiter is None else other.policies[-1:])], age)
        for _ in range(0 if exploiter is None else turns[1]):
            other.learn(main.policies[-1:], age)
    return np.array(main.policies)


def play_scissors(
    folder: Path, seed: int, self_play: dict[str, Any], exploiter: dict[str, Any] | None = None, **hyperparameters: Any
) -> np.ndarray:
    """Train rock-paper-scissors; return the policy of each checkpoint, (checkpoints, 3).

    `exploiter` is the configuration of a run that learns meanwhile to beat this one, and which this one follows.
    """
    document = section(UPDATES * ROUND, self_play, **hyperparameters)
    main, other = (
        Followed(name, folder, *(scissors.Scissors(TABLES) for _ in range(SIMULATORS)))
        for name in ("main", "exploiter")
    )
    partner = threading.Thread()
    if exploiter is not None:
        main.follower, other.follower = other, main
        document["checkpoint_interval"] = exploiter["checkpoint_interval"] = ROUND
        partner = threading.Thread(target=train, args=(other, "Scissors", exploiter, folder / "other", seed + 1000))
        partner.start()
    try:
        finished = train(main, "Scissors", document, folder / "main", seed)
    finally:
        while partner.is_alive():
            other.orders.append(Command(action="cancel"))
            partner.join(1.0)
    assert (finished.outcome, finished.reason) == ("succeeded", "completed"), finished.detail
    assert exploiter is None or main.named("opponents_followed")
    return probabilities(main.folders, SPEC, np.ones((1, 1), np.float32))[:, 0]


def last_policy(policies: np.ndarray) -> float:
    """Return the mean exploitability over the second half of a run's checkpoints."""
    return fmean(scissors.exploitability(policy) for policy in policies[len(policies) // 2 :])


def play_kuhn(folder: Path, seed: int) -> list[Any]:
    """Train Kuhn poker against the newest policy, the sides in turns; return the strategy of each checkpoint."""
    steps = 4 * ROUND
    self_play = {**LATEST, "save_steps": steps - 1, "team_change": steps - 1}
    learning = {"learning_rate": 2e-3, "learning_rate_schedule": "linear", "beta": 0.2, "lambd": 1.0}
    document = section(200 * steps, self_play, buffer_size=steps, batch_size=steps // 4, **learning)
    document["reward_signals"] = {"extrinsic": {"gamma": 1.0}}
    recorder = Recorder(*(kuhn_poker.KuhnPoker(TABLES) for _ in range(SIMULATORS)))
    finished = train(recorder, "KuhnPoker", document, folder, seed)
    assert (finished.outcome, finished.reason) == ("succeeded", "completed"), finished.detail
    observations = np.stack([kuhn_poker.observation(*state) for state in kuhn_poker.STATES])
    bets = probabilities(recorder.folders, kuhn_poker.KuhnPoker.behaviors[0], observations)[..., 1]
    return [dict(zip(kuhn_poker.STATES, row.tolist(), strict=True)) for row in bets]


def test_rock_paper_scissors_against_the_newest_policy_alone_goes_round(tmp_path: Path) -> None:
    policies = play_scissors(tmp_path, 1, LATEST, **FAST)

    assert last_policy(policies) > 0.4, np.round(policies, 2)
    mean = scissors.exploitability(policies.mean(0))
    assert mean < last_policy(policies) / 2, "what converges, if anything does, is the mean of the policies"


@pytest.mark.parametrize("seed", SEEDS)
def test_with_large_steps_an_exploiter_helps_only_if_opponents_are_new(seed: int) -> None:
    new, old = (last_policy(play_exactly(seed, age, (2, 6), {}, **FAST)) for age in (0, 2))

    assert new < 0.3
    assert old > 0.45


@pytest.mark.parametrize("seed", SEEDS)
def test_with_small_steps_and_entropy_an_exploiter_makes_up_for_old_opponents(seed: int) -> None:
    alone, exploited = (
        last_policy(play_exactly(seed, 6, (1, 1), exploiter, **CALM)) for exploiter in (None, EXPLOITER)
    )

    assert exploited < 0.15
    assert alone > 0.17


@pytest.mark.parametrize("seed", SEEDS)
def test_small_steps_and_entropy_bring_the_last_policy_near_the_equilibrium(tmp_path: Path, seed: int) -> None:
    policies = play_scissors(tmp_path, seed, LATEST, **CALM)

    assert last_policy(policies) < 0.2, np.round(policies, 2)
    assert scissors.exploitability(policies[-1]) < 0.15, np.round(policies, 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_exploiter_brings_the_last_policy_near_the_equilibrium_where_old_opponents_do_not(
    tmp_path: Path, seed: int
) -> None:
    exploiter = section(10**9, {"opponents": ["run:main"], "exploiter": {}}, **CALM | EXPLOITER)

    alone = play_scissors(tmp_path / "alone", seed, OLD, **CALM)
    exploited = play_scissors(tmp_path / "both", seed, {**OLD, "opponents": ["run:exploiter"]}, exploiter, **CALM)

    assert last_policy(exploited) < 0.12, np.round(exploited, 2)
    assert last_policy(exploited) < last_policy(alone) / 1.5, np.round(alone, 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_kuhn_poker_comes_near_an_equilibrium_and_its_value(tmp_path: Path, seed: int) -> None:
    strategies = play_kuhn(tmp_path, seed)

    first, *_, last = (kuhn_poker.exploitability(strategy) for strategy in strategies)
    assert last < 0.08 < first / 2, (first, last)
    assert kuhn_poker.value(strategies[-1], strategies[-1]) == pytest.approx(kuhn_poker.VALUE, abs=0.03)
