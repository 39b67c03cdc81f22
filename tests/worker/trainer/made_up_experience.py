"""Made-up experience of a behavior: random observations, answered by the policy itself.

A round repeats exactly for equal weights, seed and number. It says nothing about a game; it is made to reach whatever
an update touches: episodes that end and that go on, over rounds, and groups where groups are trained.
"""

import numpy as np
import torch

from ludus.collector.segments import SegmentEnd
from ludus.config.behavior import POCAConfig
from ludus.config.trainer import ReinforcementConfig
from ludus.protocol.batches import Array
from ludus.protocol.spec import BehaviorSpec
from worker.collectors.acting import POLICIES
from worker.experience.rollout import Rollout
from worker.learning.algorithms.algorithm import Algorithm
from worker.onnx.graph import acting_graph

AGENTS = 6
GROUP = 3
"""Agents of a group."""
FEWEST_STEPS, MOST_STEPS = 8, 128
"""Steps of each agent in a round."""


def make_round(
    config: ReinforcementConfig,
    spec: BehaviorSpec,
    algorithm: Algorithm,
    *,
    seed: int,
    number: int,
    weights: Array | None = None,
) -> Rollout:
    """Return round `number`: two segments of each agent, one behind the other. `weights`: those that act, the
    algorithm's by default.
    """
    rng = np.random.default_rng([seed % 2**32, number])
    half = min(max(algorithm.round_steps() // (2 * AGENTS), FEWEST_STEPS // 2), MOST_STEPS // 2, config.time_horizon)
    actor = algorithm.actor
    settings = config.network_settings
    policy = POLICIES.policy(spec, settings, actor.layout.head, graph=acting_graph(actor))
    policy.load(algorithm.flat_weights() if weights is None else weights)
    steps, segments = 2 * half * AGENTS, 2 * AGENTS
    observations = [_observed(shape.shape, shape.dtype, steps, rng) for shape in spec.observations]
    masks = np.ones((steps, spec.actions.mask_size), np.uint8) if spec.actions.discrete_branches else None
    memory = rng.standard_normal((steps, actor.memory_size)).astype(np.float32) if actor.memory_size else None
    acted = policy.act(observations, masks, memory, rng, None)
    # Of two agents one ends the episode of the round before and begins another one, the other has one in the round.
    endings = np.tile([SegmentEnd.TERMINATED, SegmentEnd.CUT, SegmentEnd.CUT, SegmentEnd.TRUNCATED], AGENTS // 2)
    episodes = number + np.tile([0, 1, 0, 0], AGENTS // 2)
    sequences = np.tile([int(number > 0), 0, 0, 1], AGENTS // 2)
    agents = np.repeat(np.arange(AGENTS), 2)
    ticks = number * 2 * half + np.tile(np.arange(2 * half), AGENTS)
    grouped = isinstance(config, POCAConfig)
    return Rollout(
        observations=[torch.from_numpy(part) for part in observations],
        next_observations=[
            torch.from_numpy(_observed(shape.shape, shape.dtype, segments, rng)) for shape in spec.observations
        ],
        continuous=torch.from_numpy(np.ascontiguousarray(acted.continuous_sample)),
        discrete=torch.from_numpy(np.ascontiguousarray(acted.discrete)).long(),
        log_probs=torch.from_numpy(np.ascontiguousarray(acted.log_probs)),
        action_masks=None if masks is None else torch.from_numpy(masks).bool(),
        rewards=torch.from_numpy(rng.standard_normal(steps).astype(np.float32)),
        group_rewards=torch.from_numpy(rng.standard_normal(steps).astype(np.float32) * grouped),
        versions=torch.full((steps,), algorithm.version, dtype=torch.int64),
        lengths=torch.full((segments,), half, dtype=torch.int64),
        endings=torch.from_numpy(endings.astype(np.uint8)),
        starts_episode=torch.from_numpy(sequences == 0),
        memories=None if memory is None else torch.from_numpy(memory),
        ticks=torch.from_numpy(ticks),
        successor_ticks=torch.from_numpy(ticks.reshape(segments, half)[:, -1] + 1),
        simulators=torch.zeros(segments, dtype=torch.int64),
        agents=torch.from_numpy(agents),
        groups=torch.from_numpy(agents // GROUP + 1 if grouped else np.zeros_like(agents)),
        episodes=torch.from_numpy(episodes),
        sequences=torch.from_numpy(sequences),
        mates_alive=torch.from_numpy(np.full(segments, grouped)),
    )


def _observed(
    shape: tuple[int, ...], dtype: str, rows: int, rng: np.random.Generator
) -> "np.ndarray[tuple[int, ...], np.dtype[np.generic]]":
    if dtype == "uint8":
        return rng.integers(256, size=(rows, *shape), dtype=np.uint8)
    return rng.standard_normal((rows, *shape)).astype(np.float32)
