"""Makers of specs, configurations and rollouts: plain functions with keyword overrides."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ludus.spec import ActionSpec, BehaviorSpec, ObservationSpec
from server.training.config import PPOConfig
from worker.experience.rollout import Rollout
from worker.experience.segments import Ending
from worker.networks.policy import ActingPolicy


def make_spec(
    *, observations: Sequence[int] = (4,), continuous: int = 0, branches: tuple[int, ...] = ()
) -> BehaviorSpec:
    """A behavior that sees vectors of these sizes."""
    return BehaviorSpec(
        "Walker",
        tuple(ObservationSpec((size,), f"vector {index}") for index, size in enumerate(observations)),
        ActionSpec(continuous, branches),
    )


def make_config(*, network: dict[str, Any] | None = None, gamma: float = 0.99, **overrides: Any) -> PPOConfig:
    """A small network, constant schedules, and `overrides` of hyperparameters or of keys beside them."""
    hyper: dict[str, Any] = {
        "batch_size": 64,
        "buffer_size": 1024,
        "learning_rate": 3e-3,
        "learning_rate_schedule": "constant",
    }
    beside = {key: overrides.pop(key) for key in ("max_steps", "time_horizon") if key in overrides}
    return PPOConfig.model_validate(
        {
            "trainer_type": "ppo",
            "hyperparameters": {**hyper, **overrides},
            "network_settings": {"hidden_units": 32, "num_layers": 2, **(network or {})},
            "reward_signals": {"extrinsic": {"gamma": gamma}},
            **beside,
        }
    )


def make_rollout(
    *,
    observations: Sequence[np.ndarray],
    rewards: np.ndarray,
    continuous: np.ndarray | None = None,
    discrete: np.ndarray | None = None,
    log_probs: np.ndarray,
    masks: np.ndarray | None = None,
    lengths: Sequence[int] | None = None,
    ending: Ending | Sequence[Ending] = Ending.TERMINATED,
    next_observations: Sequence[np.ndarray] | None = None,
    group_rewards: np.ndarray | None = None,
    version: int = 0,
) -> Rollout:
    """A rollout from arrays. Without `lengths` every step is an episode; without successors the first rows stand in."""
    steps = len(rewards)
    lengths = [1] * steps if lengths is None else list(lengths)
    endings = [ending] * len(lengths) if isinstance(ending, Ending) else list(ending)
    following = [part[: len(lengths)] for part in observations] if next_observations is None else next_observations

    def tensor(array: np.ndarray | None, dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(np.zeros((steps, 0)) if array is None else array).to(dtype)

    return Rollout(
        observations=[tensor(part, torch.float32) for part in observations],
        next_observations=[tensor(part, torch.float32) for part in following],
        continuous=tensor(continuous, torch.float32),
        discrete=tensor(discrete, torch.int64),
        log_probs=tensor(log_probs, torch.float32),
        action_masks=None if masks is None else tensor(masks, torch.bool),
        rewards=tensor(rewards, torch.float32),
        group_rewards=tensor(np.zeros(steps) if group_rewards is None else group_rewards, torch.float32),
        versions=torch.full((steps,), version),
        lengths=torch.tensor(lengths),
        endings=torch.tensor([int(item) for item in endings], dtype=torch.uint8),
        starts_episode=torch.ones(len(lengths), dtype=torch.bool),
    )


def acted_rollout(
    policy: ActingPolicy,
    rng: np.random.Generator,
    *,
    steps: int = 256,
    masked: bool = False,
    rewards: np.ndarray | None = None,
    **overrides: Any,
) -> Rollout:
    """A rollout of a policy on random observations, with random rewards and, if asked, random masks."""
    layout = policy.layout
    observations = [rng.normal(1.0, 3.0, (steps, size)).astype(np.float32) for size in layout.observation_sizes]
    masks = random_masks(rng, steps, layout.discrete_branches) if masked else None
    acted = policy.act(observations, masks, rng)
    return make_rollout(
        observations=observations,
        rewards=rng.normal(size=steps) if rewards is None else rewards,
        continuous=acted.continuous_sample,
        discrete=acted.discrete,
        log_probs=acted.log_probs,
        masks=masks,
        **overrides,
    )


def random_masks(rng: np.random.Generator, rows: int, branches: tuple[int, ...]) -> np.ndarray:
    """Masks that allow at least one choice of each branch."""
    masks = [rng.random((rows, size)) < 0.5 for size in branches]
    for mask in masks:
        mask[np.arange(rows), rng.integers(0, mask.shape[1], rows)] = True
    return np.concatenate(masks, 1) if masks else np.zeros((rows, 0), bool)
