"""Makers of specs, configurations and rollouts: plain functions with keyword overrides."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ludus.collector.policy import ActingPolicy
from ludus.collector.segments import SegmentEnd
from ludus.config.behavior import PPOConfig
from ludus.protocol.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from worker.experience.rollout import Rollout


def make_spec(
    *,
    observations: Sequence[int | tuple[int, ...]] = (4,),
    continuous: int = 0,
    branches: tuple[int, ...] = (),
    goal: int | None = None,
) -> BehaviorSpec:
    """A behavior that sees vectors of sizes `n`, uint8 images `(C, H, W)`, variable-length observations `(E, F)`.

    `goal` is the number of the observation that is a goal signal.
    """
    return BehaviorSpec(
        "Walker",
        tuple(_make_observation(shape, index, goal == index) for index, shape in enumerate(observations)),
        ActionSpec(continuous, branches),
    )


def _make_observation(shape: int | tuple[int, ...], index: int, goal: bool) -> ObservationSpec:
    kind = ObservationType.GOAL_SIGNAL if goal else ObservationType.DEFAULT
    moves, fixed = DimensionProperty.TRANSLATIONAL_EQUIVARIANCE, DimensionProperty.NONE
    match shape:
        case int():
            return ObservationSpec((shape,), f"vector {index}", type=kind)
        case (_, _, _):
            return ObservationSpec(shape, f"image {index}", "uint8", kind, (fixed, moves, moves))
        case _:
            return ObservationSpec(
                shape, f"entities {index}", type=kind, dimension_properties=(DimensionProperty.VARIABLE_SIZE, fixed)
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
    ending: SegmentEnd | Sequence[SegmentEnd] = SegmentEnd.TERMINATED,
    next_observations: Sequence[np.ndarray] | None = None,
    group_rewards: np.ndarray | None = None,
    version: int = 0,
    memories: np.ndarray | None = None,
    ticks: Sequence[int] | np.ndarray | None = None,
    successor_ticks: Sequence[int] | np.ndarray | None = None,
    simulators: Sequence[int] | np.ndarray | None = None,
    agents: Sequence[int] | np.ndarray | None = None,
    groups: Sequence[int] | np.ndarray | None = None,
    episodes: Sequence[int] | np.ndarray | None = None,
    sequences: Sequence[int] | np.ndarray | None = None,
    mates_alive: Sequence[bool] | np.ndarray | None = None,
) -> Rollout:
    """A rollout from arrays. Without `lengths` every step is an episode; without successors the first rows stand in.

    Each segment is an agent's first one, unless `agents`, `episodes` and `sequences` say otherwise; they are alone and
    begin at tick 0. Observations of uint8 stay uint8.
    """
    steps = len(rewards)
    lengths = [1] * steps if lengths is None else list(lengths)
    endings = [ending] * len(lengths) if isinstance(ending, SegmentEnd) else list(ending)
    following = [part[: len(lengths)] for part in observations] if next_observations is None else next_observations

    def tensor(array: np.ndarray | None, dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(np.zeros((steps, 0)) if array is None else array).to(dtype)

    def seen(array: np.ndarray) -> Tensor:
        return torch.as_tensor(array).to(torch.uint8 if array.dtype == np.uint8 else torch.float32)

    def per_segment(values: Sequence[int] | np.ndarray | None, default: int = 0) -> Tensor:
        return torch.as_tensor(np.full(len(lengths), default) if values is None else values).long()

    segment_sequences = per_segment(sequences)
    return Rollout(
        observations=[seen(part) for part in observations],
        next_observations=[seen(part) for part in following],
        continuous=tensor(continuous, torch.float32),
        discrete=tensor(discrete, torch.int64),
        log_probs=tensor(log_probs, torch.float32),
        action_masks=None if masks is None else tensor(masks, torch.bool),
        rewards=tensor(rewards, torch.float32),
        group_rewards=tensor(np.zeros(steps) if group_rewards is None else group_rewards, torch.float32),
        versions=torch.full((steps,), version),
        lengths=torch.tensor(lengths),
        endings=torch.tensor([int(item) for item in endings], dtype=torch.uint8),
        starts_episode=segment_sequences == 0,
        memories=None if memories is None else tensor(memories, torch.float32),
        ticks=torch.as_tensor(np.concatenate([np.arange(length) for length in lengths]) if ticks is None else ticks),
        successor_ticks=per_segment(lengths if successor_ticks is None else successor_ticks),
        simulators=per_segment(simulators),
        agents=per_segment(range(len(lengths)) if agents is None else agents),
        groups=per_segment(groups),
        episodes=per_segment(episodes),
        sequences=segment_sequences,
        mates_alive=per_segment(mates_alive).bool(),
    )


def random_rollout(
    spec: BehaviorSpec,
    lengths: Sequence[int],
    rng: np.random.Generator,
    *,
    memory_size: int = 0,
    group_size: int = 0,
    masked: bool = False,
    **overrides: Any,
) -> Rollout:
    """A rollout for any spec, with ragged segments of random length, endings, observations, actions and memories.

    Of the entities of variable-length observations some are padding (zeros). Memories are zero at an episode's start.
    With `group_size` so many neighbouring segments are one group, and those of a group begin at the same tick.
    Log-probabilities are random, too: `acted_rollout` has those of a policy.
    """
    steps, segments = sum(lengths), len(lengths)
    actions = spec.actions
    endings = [SegmentEnd(int(value)) for value in rng.integers(0, 3, segments)]
    starts = np.cumsum([0, *lengths[:-1]])
    memories = rng.normal(size=(steps, memory_size)).astype(np.float32)
    memories[starts] = 0
    discrete = [rng.integers(0, branch, steps) for branch in actions.discrete_branches]
    masks = random_masks(rng, steps, actions.discrete_branches) if masked and actions.discrete_branches else None
    if masks is not None:
        offsets = np.cumsum((0, *actions.discrete_branches[:-1]))
        for choice, offset in zip(discrete, offsets, strict=True):
            masks[np.arange(steps), choice + offset] = True  # what was chosen was allowed
    elif actions.discrete_branches:
        masks = np.ones((steps, actions.mask_size), bool)
    arguments: dict[str, Any] = {
        "observations": [random_observation(item, steps, rng) for item in spec.observations],
        "next_observations": [random_observation(item, segments, rng) for item in spec.observations],
        "rewards": rng.normal(size=steps),
        "group_rewards": rng.normal(size=steps) if group_size else None,
        "continuous": rng.normal(size=(steps, actions.continuous_size)),
        "discrete": np.stack(discrete, 1) if discrete else None,
        "log_probs": -rng.exponential(size=(steps, actions.continuous_size + len(actions.discrete_branches))),
        "masks": masks,
        "lengths": lengths,
        "ending": endings,
        "memories": memories if memory_size else None,
        "groups": np.arange(segments) // group_size + 1 if group_size else None,
    }
    return make_rollout(**{**arguments, **overrides})


def random_observation(spec: ObservationSpec, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of an observation: bytes, or normal numbers; a random number of the last entities is padding."""
    if spec.dtype == "uint8":
        return rng.integers(0, 256, (rows, *spec.shape), np.uint8)
    values = rng.normal(1.0, 3.0, (rows, *spec.shape)).astype(np.float32)
    if len(spec.shape) == 2:
        values[np.arange(spec.shape[0]) >= rng.integers(1, spec.shape[0] + 1, rows)[:, None]] = 0
    return values


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
    widths = [item.size for item in layout.body.observations]
    observations = [rng.normal(1.0, 3.0, (steps, width)).astype(np.float32) for width in widths]
    masks = random_masks(rng, steps, layout.discrete_branches) if masked else None
    acted = policy.act(observations, masks, None, rng)
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


def equal_states(one: Any, other: Any) -> bool:
    """Whether two nested states are equal, tensors bit for bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal_states(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal_states, one, other))
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)
