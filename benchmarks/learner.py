"""Learner samples/s against Stable-Baselines3's PPO: the same sizes, the same data volume, one thread, A B A B.

    python benchmarks/learner.py                      table on stdout
    python benchmarks/learner.py --json result.json   the figures, too
    python benchmarks/learner.py --compiled           a third column: the loss through torch.compile (a minute to build)
    python benchmarks/learner.py --autograd           a third column: ours without derivatives by hand (ADR 10)
    python benchmarks/learner.py --device cuda        both on a GPU

Both update on one buffer of 12 agents x 1,000 steps in minibatches of 64 for 3 epochs, separate actor and critic of
2 x 128 units with Swish, CartPole's observations and actions. SB3 normalises advantages per minibatch and clips
gradients, as it does by default; ours computes values, advantages and all statistics within the time measured.
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
import torch

from ludus.collector.segments import SegmentEnd
from ludus.config.behavior import PPOConfig
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from worker.experience.rollout import Rollout
from worker.learning.algorithms.ppo import PPO
from worker.learning.fast.switch import autograd_only

AGENTS, STEPS, BATCH, EPOCHS, UNITS, HORIZON = 12, 1000, 64, 3, 128, 64
CPU = torch.device("cpu")
SPEC = BehaviorSpec("CartPole", (ObservationSpec((4,)),), ActionSpec(discrete_branches=(2,)))


def our_update(device: torch.device = CPU, *, compiled: bool = False) -> Callable[[], object]:
    """Return a call that updates our PPO once."""
    config = PPOConfig.model_validate(
        {
            "trainer_type": "ppo",
            "hyperparameters": {"batch_size": BATCH, "buffer_size": AGENTS * STEPS, "num_epoch": EPOCHS},
            "network_settings": {"hidden_units": UNITS, "num_layers": 2},
        }
    )
    ppo = PPO(config, SPEC, device, seed=1)
    if compiled:
        ppo.compile()
    rollout = _rollout()
    return lambda: ppo.update(rollout, step=0)


def sb3_update(device: torch.device = CPU) -> Callable[[], object]:
    """Return a call that updates Stable-Baselines3's PPO once."""
    from stable_baselines3 import PPO as SB3  # noqa: PLC0415  (an optional dependency, and its usual name)
    from stable_baselines3.common.env_util import make_vec_env  # noqa: PLC0415
    from stable_baselines3.common.logger import configure  # noqa: PLC0415

    environments = make_vec_env(lambda: gymnasium.make("CartPole-v1"), n_envs=AGENTS)
    architecture = {"net_arch": {"pi": [UNITS] * 2, "vf": [UNITS] * 2}, "activation_fn": torch.nn.SiLU}
    model = SB3(
        "MlpPolicy",
        environments,
        n_steps=STEPS,
        batch_size=BATCH,
        n_epochs=EPOCHS,
        policy_kwargs=architecture,
        device=device,
        seed=1,
    )
    model.set_logger(configure(None, []))
    model.learn(AGENTS * STEPS)  # fills the buffer; an update does not change it
    train: Callable[[], object] = model.train
    return train


def _rollout() -> Rollout:
    """Return random experience of the benchmark's size, as a collector would deliver it."""
    generator = torch.Generator().manual_seed(1)
    rows = AGENTS * STEPS
    lengths = torch.tensor([*[HORIZON] * (STEPS // HORIZON), STEPS % HORIZON] * AGENTS)
    endings = torch.randint(0, 2, (len(lengths),), generator=generator).to(torch.uint8)
    return Rollout(
        observations=[torch.randn(rows, 4, generator=generator)],
        next_observations=[torch.randn(len(lengths), 4, generator=generator)],
        continuous=torch.zeros(rows, 0),
        discrete=torch.randint(0, 2, (rows, 1), generator=generator),
        log_probs=torch.full((rows, 1), 0.5).log(),
        action_masks=torch.ones(rows, 2, dtype=torch.bool),
        rewards=torch.ones(rows),
        group_rewards=torch.zeros(rows),
        versions=torch.zeros(rows, dtype=torch.int64),
        lengths=lengths,
        endings=endings * int(SegmentEnd.TERMINATED),
        starts_episode=torch.zeros(len(lengths), dtype=torch.bool),
        memories=None,
        ticks=torch.arange(STEPS).repeat(AGENTS),
        successor_ticks=torch.zeros(len(lengths), dtype=torch.int64),
        simulators=torch.zeros(len(lengths), dtype=torch.int64),
        agents=torch.arange(AGENTS).repeat_interleave(len(lengths) // AGENTS),
        groups=torch.zeros(len(lengths), dtype=torch.int64),
        episodes=torch.zeros(len(lengths), dtype=torch.int64),
        sequences=torch.zeros(len(lengths), dtype=torch.int64),
        mates_alive=torch.zeros(len(lengths), dtype=torch.bool),
    )


def synchronize(device: torch.device) -> None:
    """Wait for the GPU: updates return before it has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(
    contestants: dict[str, Callable[[], object]], rounds: int, device: torch.device = CPU
) -> dict[str, list[float]]:
    """Return seconds per update for each contestant; they take turns, after one update each that doesn't count."""
    for update in contestants.values():
        update()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, update in contestants.items():
            synchronize(device)
            begin = time.perf_counter()
            update()
            synchronize(device)
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="updates of each that count")
    parser.add_argument("--compiled", action="store_true", help="measure torch.compile, too")
    parser.add_argument("--autograd", action="store_true", help="measure ours without derivatives by hand, too")
    parser.add_argument("--device", type=torch.device, default=CPU, help="where both learn: cpu, cuda, cuda:N")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    contestants = {"stable-baselines3": sb3_update(options.device), "ludus": our_update(options.device)}
    if options.autograd:
        with autograd_only():
            contestants["ludus by autograd"] = our_update(options.device)
    if options.compiled:
        contestants["ludus compiled"] = our_update(options.device, compiled=True)
    seconds = measure(contestants, options.rounds, options.device)

    samples = AGENTS * STEPS * EPOCHS
    minibatches = samples / BATCH
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    base = medians["stable-baselines3"]
    print(f"{'PPO update':<20}{'ms/minibatch':>14}{'samples/s':>12}{'ratio':>8}")
    for name, median in medians.items():
        print(f"{name:<20}{median / minibatches * 1e3:>14.3f}{samples / median:>12,.0f}{base / median:>8.2f}")
    if options.json:
        figures = {
            "machine": platform.processor() or platform.machine(),
            "torch": torch.__version__,
            "device": str(options.device),
            "seconds_per_update": seconds,
            "samples_per_second": {name: samples / median for name, median in medians.items()},
            "ratio": {name: base / median for name, median in medians.items()},
        }
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
