"""Learner updates/s against Stable-Baselines3's SAC: the same sizes, batches of the same size, one thread, A B A B.

    python benchmarks/sac.py                        3DBall's sizes: 8 observations, 2 columns, 2 x 64 units, batch 64
    python benchmarks/sac.py --units 256 --batch 256
    python benchmarks/sac.py --json result.json     the figures, too
    python benchmarks/sac.py --autograd             ours without derivatives by hand, too (ADR 10)
    python benchmarks/sac.py --device cuda          both on a GPU

Both draw from a full replay buffer of 200,000 transitions and take one gradient step of everything: critics, policy,
entropy coefficient, target. Ours has a value network and its target where SB3 has two target Q networks, normalises
observations (SB3 does not), and includes the other costs of a round of 10 steps: storing them, the statistics of
observations, the snapshot for a rollback, checks and metrics, i.e. all of `SAC.update`.
The result is the ratio of medians: both alternate in one process, so a busy machine slows both.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
import torch

from ludus.collector.segments import SegmentEnd
from ludus.config.behavior import SACConfig
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from worker.experience.rollout import Rollout
from worker.learning.algorithms.sac import SAC
from worker.learning.fast.switch import autograd_only
from worker.learning.rewards.signals import ExtrinsicReward, NamedSignal, SignalSet

OBSERVATIONS, COLUMNS, CAPACITY, HORIZON = 8, 2, 200_000, 1000
STEPS_PER_UPDATE = 10
CPU = torch.device("cpu")
SPEC = BehaviorSpec("3DBall", (ObservationSpec((OBSERVATIONS,)),), ActionSpec(COLUMNS))


def our_update(units: int, batch: int, device: torch.device = CPU) -> Callable[[int], None]:
    """Return a call that makes so many updates of our SAC, each with the round of steps that it is due after."""
    config = SACConfig.model_validate(
        {
            "trainer_type": "sac",
            "hyperparameters": {
                "batch_size": batch,
                "buffer_size": CAPACITY,
                "steps_per_update": STEPS_PER_UPDATE,
                "init_entcoef": 0.5,
            },
            "network_settings": {"normalize": True, "hidden_units": units, "num_layers": 2},
        }
    )
    signals = SignalSet([NamedSignal("extrinsic", 1.0, 0.99, ExtrinsicReward())], device)
    sac = SAC(config, SPEC, device, 1, signals)
    generator = torch.Generator().manual_seed(1)
    for start in range(0, CAPACITY, HORIZON):
        sac.experience.store(_rollout(HORIZON, start // HORIZON, 0, generator))
    steps = CAPACITY
    sac.experience.updates = CAPACITY // STEPS_PER_UPDATE
    rounds = [_rollout(STEPS_PER_UPDATE, 10**6, sequence, generator) for sequence in range(64)]

    def update(times: int) -> None:
        nonlocal steps
        for index in range(times):
            steps += STEPS_PER_UPDATE
            assert sac.update(rounds[index % len(rounds)], steps) is not None

    return update


def sb3_update(units: int, batch: int, device: torch.device = CPU) -> Callable[[int], None]:
    """Return a call that makes so many updates of Stable-Baselines3's SAC."""
    from stable_baselines3 import SAC as SB3  # noqa: PLC0415  (an optional dependency, and its usual name)
    from stable_baselines3.common.logger import configure  # noqa: PLC0415

    model = SB3(
        "MlpPolicy",
        _Space(),
        batch_size=batch,
        buffer_size=CAPACITY,
        policy_kwargs={"net_arch": [units] * 2, "activation_fn": torch.nn.SiLU},
        device=device,
        seed=1,
    )
    model.set_logger(configure(None, []))
    generator = np.random.default_rng(1)
    for column in (model.replay_buffer.observations, model.replay_buffer.next_observations):
        column[:] = generator.normal(size=column.shape)
    model.replay_buffer.actions[:] = generator.uniform(-1, 1, model.replay_buffer.actions.shape)
    model.replay_buffer.rewards[:] = 0.1
    model.replay_buffer.full = True
    return lambda times: model.train(gradient_steps=times, batch_size=batch)


class _Space(gymnasium.Env[np.ndarray, np.ndarray]):
    """The spaces of 3DBall for SB3; not playable."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBSERVATIONS,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (COLUMNS,))


def _rollout(steps: int, agent: int, sequence: int, generator: torch.Generator) -> Rollout:
    """Return random experience of one agent."""
    zero = torch.zeros(1, dtype=torch.int64)
    return Rollout(
        observations=[torch.randn(steps, OBSERVATIONS, generator=generator)],
        next_observations=[torch.randn(1, OBSERVATIONS, generator=generator)],
        continuous=torch.rand(steps, COLUMNS, generator=generator) * 2 - 1,
        discrete=torch.zeros(steps, 0, dtype=torch.int64),
        log_probs=torch.zeros(steps, COLUMNS),
        action_masks=None,
        rewards=torch.full((steps,), 0.1),
        group_rewards=torch.zeros(steps),
        versions=torch.zeros(steps, dtype=torch.int64),
        lengths=torch.tensor([steps]),
        endings=torch.tensor([int(SegmentEnd.CUT)], dtype=torch.uint8),
        starts_episode=zero == sequence,
        memories=None,
        ticks=torch.arange(steps),
        successor_ticks=zero + steps,
        simulators=zero,
        agents=zero + agent,
        groups=zero,
        episodes=zero,
        sequences=zero + sequence,
        mates_alive=zero.bool(),
    )


def synchronize(device: torch.device) -> None:
    """Wait for the GPU: updates return before it has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(
    contestants: dict[str, Callable[[int], None]], rounds: int, updates: int, device: torch.device = CPU
) -> dict[str, list[float]]:
    """Return seconds per update for each contestant; they take turns, after a round each that doesn't count."""
    for update in contestants.values():
        update(updates)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, update in contestants.items():
            synchronize(device)
            begin = time.perf_counter()
            update(updates)
            synchronize(device)
            seconds[name].append((time.perf_counter() - begin) / updates)
    return seconds


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=64, help="width of both hidden layers")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each that count")
    parser.add_argument("--updates", type=int, default=200, help="updates in a round")
    parser.add_argument("--autograd", action="store_true", help="measure ours without derivatives by hand, too")
    parser.add_argument("--device", type=torch.device, default=CPU, help="where both learn: cpu, cuda, cuda:N")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    contestants = {
        "stable-baselines3": sb3_update(options.units, options.batch, options.device),
        "ludus": our_update(options.units, options.batch, options.device),
    }
    if options.autograd:
        with autograd_only():
            contestants["ludus by autograd"] = our_update(options.units, options.batch, options.device)
    seconds = measure(contestants, options.rounds, options.updates, options.device)

    medians = {name: statistics.median(times) for name, times in seconds.items()}
    base = medians["stable-baselines3"]
    print(f"{'SAC update':<20}{'ms/update':>12}{'updates/s':>12}{'ratio':>8}")
    for name, median in medians.items():
        print(f"{name:<20}{median * 1e3:>12.3f}{1.0 / median:>12,.0f}{base / median:>8.2f}")
    if options.json:
        figures = {
            "machine": platform.processor() or platform.machine(),
            "torch": torch.__version__,
            "device": str(options.device),
            "units": options.units,
            "batch": options.batch,
            "seconds_per_update": seconds,
            "ratio": {name: base / median for name, median in medians.items()},
        }
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
