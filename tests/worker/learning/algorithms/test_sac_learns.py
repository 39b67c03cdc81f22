"""SAC on toys with known answers, in seconds."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from ludus.collector.acted import Acted
from ludus.collector.segments import SegmentEnd
from ludus.protocol.spec import BehaviorSpec
from tests.toys.drills import Drill, Errand, Market, Recall, Spotlight
from tests.toys.playing import Arcade, Training
from tests.toys.shapes import shapes_checked_now_and_then
from tests.worker.learning.algorithms.off_policy_world import make_sac, make_sac_config
from tests.worker.rollouts import make_rollout, make_spec
from tests.worker.toys import Bandit, OneStepToy, Target, TwoBranches, play
from worker.collectors.acting import POLICIES
from worker.learning.algorithms.sac import SAC

AGENTS = 16


@dataclass
class Both:
    """A column must be what is seen, and a choice its sign. Best mean reward: 1."""

    spec: BehaviorSpec = field(default_factory=lambda: make_spec(observations=(1,), continuous=1, branches=(2,)))

    def observe(self, rng: np.random.Generator, agents: int) -> np.ndarray:
        return rng.uniform(-0.8, 0.8, (agents, 1)).astype(np.float32)

    def masks(self, rng: np.random.Generator, observations: np.ndarray) -> np.ndarray | None:
        return None

    def rewards(self, observations: np.ndarray, acted: Acted) -> np.ndarray:
        right = acted.discrete[:, 0] == (observations[:, 0] > 0)
        return right - ((acted.continuous_env - observations) ** 2)[:, 0]


def learn(toy: OneStepToy, sac: SAC, *, updates: int) -> list[float]:
    """Train on a one-step toy, a gradient step for each `AGENTS` steps; return the mean reward of every 25 rounds."""
    policy = POLICIES.policy(toy.spec, sac.config.network_settings, head="squashed")
    means = play(toy, sac, policy, steps=range(AGENTS, (updates + 1) * AGENTS, AGENTS), agents=AGENTS)
    return [float(np.mean(means[start : start + 25])) for start in range(0, updates, 25)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("toy", "updates", "best", "margin"),
    [
        pytest.param(Bandit(), 200, 0.8, 0.1, id="bandit", marks=pytest.mark.long),
        pytest.param(TwoBranches(), 150, 1.0, 0.1, id="two-branches-with-masks"),
        pytest.param(Target(columns=3), 300, 0.0, 0.05, id="three-continuous-targets"),
        pytest.param(Both(), 250, 1.0, 0.15, id="hybrid", marks=pytest.mark.long),
    ],
)
def test_reaches_the_best_reward(toy: OneStepToy, updates: int, best: float, margin: float) -> None:
    config = make_sac_config(
        network={"hidden_units": 32, "normalize": True},
        batch_size=128,
        buffer_size=20_000,
        steps_per_update=AGENTS,
        learning_rate=3e-3,
        init_entcoef=0.02,
    )
    sac = make_sac(toy.spec, config)

    rewards = learn(toy, sac, updates=updates)

    assert rewards[0] < best - 2 * margin, "a toy that is solved at the start shows nothing"
    assert rewards[-1] > best - margin


def endless_value(ending: SegmentEnd, *, updates: int = 400) -> float:
    """The mean value after training on steps that pay 1 for ever; segments of 4 steps end as `ending` says."""
    spec = make_spec(observations=(2,), continuous=1)
    sac = make_sac(
        spec,
        make_sac_config(
            signals={"extrinsic": {"gamma": 0.8}},
            steps_per_update=4,
            batch_size=64,
            buffer_size=2000,
            learning_rate=3e-3,
            init_entcoef=1e-6,
            tau=0.05,
        ),
    )
    rng = np.random.default_rng(1)
    metrics: dict[str, float] = {}
    with torch.no_grad():
        sac.model.target_entropies.fill_(-50.0)  # the coefficient stays near 0: entropy adds nothing to the values
    for update in range(updates):
        observations = rng.normal(size=(5, 2)).astype(np.float32)
        rollout = make_rollout(
            observations=[observations[:4]],
            next_observations=[observations[4:]],
            rewards=np.ones(4),
            continuous=np.tanh(rng.normal(size=(4, 1))),
            log_probs=np.zeros((4, 1)),
            lengths=[4],
            ending=ending,
            episodes=[update],
        )
        with shapes_checked_now_and_then(sac):
            metrics = dict(sac.update(rollout, (update + 1) * 4) or metrics)
    return metrics["Policy/Extrinsic Value"]


@pytest.mark.long
@pytest.mark.parametrize("ending", [SegmentEnd.TRUNCATED, pytest.param(SegmentEnd.CUT, marks=pytest.mark.long)])
def test_value_of_an_endless_task_is_the_geometric_series(ending: SegmentEnd) -> None:
    # Rewards of 1 for ever: V = 1 / (1 - 0.8) = 5, however the segments end as long as the task does not.
    assert endless_value(ending) == pytest.approx(5.0, abs=0.4)


LSTM = {"memory": {"sequence_length": 4, "memory_size": 32}}


def drill(game: Drill, *, network: dict[str, Any] | None = None, batch_size: int = 256) -> Training:
    """SAC and a game, through a collector's lane: rounds of 64 steps with 4 gradient steps each."""
    config = make_sac_config(
        network={"hidden_units": 32, "num_layers": 1, **(network or {})},
        batch_size=batch_size,
        buffer_size=20_000,
        steps_per_update=16,
        learning_rate=3e-3,
        init_entcoef=0.02,
        tau=0.02,
    )
    return Training(make_sac(game.spec, config), Arcade(game, config, steps=64))


@pytest.mark.long
@pytest.mark.parametrize("network", [LSTM, {}], ids=["memory", "control-without"])
def test_a_cue_is_remembered_with_a_memory_only(network: dict[str, Any]) -> None:
    scores = drill(Recall(agents=16), network=network).run(50)

    score = float(np.mean(scores[-10:]))
    assert (score > 0.9) if network else (0.3 < score < 0.7)


@pytest.mark.parametrize(
    ("game", "rounds", "bar"),
    [
        pytest.param(Errand(agents=16), 60, 0.9, id="goal", marks=pytest.mark.long),  # by chance 1/3
        pytest.param(Market(agents=16), 40, 0.8, id="entities", marks=pytest.mark.long),
        pytest.param(Spotlight(20, agents=16), 60, 0.9, id="picture", marks=pytest.mark.long),
    ],
)
def test_every_kind_of_observation_is_learnt_from(game: Drill, rounds: int, bar: float) -> None:
    scores = drill(game, batch_size=64).run(rounds)

    assert float(np.mean(scores[:5])) < bar - 0.2
    assert float(np.mean(scores[-5:])) > bar
