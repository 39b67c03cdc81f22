"""Makers for tests of DQN: learners, and rounds of which every number is known."""

from typing import Any

import numpy as np
import torch

from ludus.collector.segments import SegmentEnd
from ludus.config.behavior import DQNConfig
from ludus.protocol.spec import BehaviorSpec
from tests.worker.rollouts import make_rollout, make_spec
from worker.experience.rollout import Rollout
from worker.learning.algorithms.dqn import DQN
from worker.learning.build import Demonstrations, build_signals

CPU = torch.device("cpu")


def make_dqn_config(
    *, network: dict[str, Any] | None = None, signals: dict[str, Any] | None = None, max_steps: int = 1000, **hyper: Any
) -> DQNConfig:
    """A small network, and `hyper`parameters that let every round learn."""
    return DQNConfig.model_validate(
        {
            "trainer_type": "dqn",
            "hyperparameters": {"batch_size": 16, "buffer_size": 500, "steps_per_update": 4.0, "learning_rate": 3e-3}
            | hyper,
            "network_settings": {"hidden_units": 16, "num_layers": 2, **(network or {})},
            "reward_signals": signals or {"extrinsic": {"gamma": 0.5}},
            "max_steps": max_steps,
        }
    )


def make_dqn(spec: BehaviorSpec | None = None, config: DQNConfig | None = None, *, seed: int = 1, **hyper: Any) -> DQN:
    """A learner of a behavior that sees a number and has a branch of three choices, unless another one is given."""
    spec = make_spec(observations=(1,), branches=(3,)) if spec is None else spec
    config = make_dqn_config(**hyper) if config is None else config
    generator = torch.Generator().manual_seed(seed + 1000)
    signals = build_signals(config.reward_signals, spec, CPU, generator, Demonstrations({}))
    return DQN(config, spec, CPU, seed, signals)


def fix_q(dqn: DQN, q: list[float], target: list[float]) -> None:
    """Let both networks give the same values for every observation."""
    network = dqn.model
    with torch.no_grad():
        for heads, values in ((network.heads, q), (network.target_heads, target)):
            heads.advantages.weight.zero_()
            heads.advantages.bias.copy_(torch.tensor(values))
            if heads.values is not None:
                heads.values.weight.zero_()
                heads.values.bias.zero_()


def one_episode(
    rewards: list[float],
    ending: SegmentEnd,
    *,
    discrete: list[list[int]] | None = None,
    masks: np.ndarray | None = None,
    **segment: Any,
) -> Rollout:
    """An episode whose observations are 0, 1, 2, ...; choices are 0 unless given."""
    steps = len(rewards)
    return make_rollout(
        observations=[np.arange(steps, dtype=np.float32)[:, None]],
        next_observations=[np.array([[float(steps)]])],
        rewards=np.array(rewards),
        discrete=np.zeros((steps, 1)) if discrete is None else np.array(discrete),
        log_probs=np.zeros((steps, 1 if discrete is None else len(discrete[0]))),
        masks=masks,
        ending=[ending],
        lengths=[steps],
        **segment,
    )
