"""Pendulum-v1 with SAC, one environment in this process and one update a step: the score after 20,000 steps.

    python benchmarks/pendulum.py [--seeds 1] [--steps 20000] [--sb3] [--json FILE]

The score is the mean return of 20 episodes with fixed starts, of the deterministic policy. The bar is -180
(Stable-Baselines3's zoo: -157 +- 89, its hub: -174 +- 97). `--sb3` trains Stable-Baselines3's SAC with the same
numbers, the zoo's: 2 x 256 units, batch 256, learning rate 1e-3, from step 100 on.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from ludus.collector.segments import SegmentEnd
from ludus.config.behavior import SACConfig
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from worker.collectors.acting import POLICIES
from worker.experience.rollout import Rollout
from worker.learning.algorithms.sac import SAC
from worker.learning.rewards.signals import ExtrinsicReward, NamedSignal, SignalSet

ENVIRONMENT, TORQUE, GAMMA, STARTS = "Pendulum-v1", 2.0, 0.99, 20
SPEC = BehaviorSpec("Pendulum", (ObservationSpec((3,)),), ActionSpec(1))
FloatArray = NDArray[np.float32]


def score(act: Callable[[FloatArray], FloatArray]) -> float:
    """Return the mean return of the fixed starts; `act` gives actions in [-1, 1]."""
    environment = gymnasium.make(ENVIRONMENT)
    returns = []
    for seed in range(STARTS):
        observation, _ = environment.reset(seed=10_000 + seed)
        total, over = 0.0, False
        while not over:
            observation, reward, terminated, truncated, _ = environment.step(act(observation) * TORQUE)
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return statistics.fmean(returns)


def ludus(seed: int, steps: int) -> tuple[float, float]:
    """Train ours; return its score and the seconds of training."""
    config = SACConfig.model_validate(
        {
            "trainer_type": "sac",
            "hyperparameters": {
                "batch_size": 256,
                "buffer_size": steps,
                "buffer_init_steps": 100,
                "learning_rate": 1e-3,
                "steps_per_update": 1.0,
            },
            "network_settings": {"hidden_units": 256, "num_layers": 2},
            "reward_signals": {"extrinsic": {"gamma": GAMMA}},
        }
    )
    signals = SignalSet([NamedSignal("extrinsic", 1.0, GAMMA, ExtrinsicReward())], torch.device("cpu"))
    sac = SAC(config, SPEC, torch.device("cpu"), seed, signals)
    policy = POLICIES.policy(SPEC, config.network_settings, head="squashed")
    rng = np.random.default_rng(seed)
    environment = gymnasium.make(ENVIRONMENT)
    observation, _ = environment.reset(seed=seed)
    episode, sequence, begin = 0, 0, time.perf_counter()
    for step in range(1, steps + 1):
        policy.load(sac.flat_weights())
        action = policy.act([observation[None]], None, None, rng).continuous_env
        following, reward, _, truncated, _ = environment.step(action[0] * TORQUE)
        sac.update(_step(observation, action, float(reward), following, bool(truncated), episode, sequence), step)
        observation, sequence = following, sequence + 1
        if truncated:
            observation, _ = environment.reset()
            episode, sequence = episode + 1, 0
    seconds = time.perf_counter() - begin

    def act(seen: FloatArray) -> FloatArray:
        continuous, _, _ = sac.actor.deterministic([torch.from_numpy(seen[None])], None)
        return continuous[0].numpy()

    return score(act), seconds


def _step(
    observation: FloatArray,
    action: FloatArray,
    reward: float,
    following: FloatArray,
    truncated: bool,
    episode: int,
    sequence: int,
) -> Rollout:
    """Return a round of one step."""
    zero = torch.zeros(1, dtype=torch.int64)
    ending = SegmentEnd.TRUNCATED if truncated else SegmentEnd.CUT
    return Rollout(
        observations=[torch.from_numpy(observation[None])],
        next_observations=[torch.from_numpy(following[None])],
        continuous=torch.from_numpy(action),
        discrete=torch.zeros(1, 0, dtype=torch.int64),
        log_probs=torch.zeros(1, 1),
        action_masks=None,
        rewards=torch.tensor([reward]),
        group_rewards=torch.zeros(1),
        versions=zero,
        lengths=zero + 1,
        endings=torch.tensor([int(ending)], dtype=torch.uint8),
        starts_episode=zero == sequence,
        memories=None,
        ticks=zero,
        successor_ticks=zero + 1,
        simulators=zero,
        agents=zero,
        groups=zero,
        episodes=zero + episode,
        sequences=zero + sequence,
        mates_alive=zero.bool(),
    )


def sb3(seed: int, steps: int) -> tuple[float, float]:
    """Train Stable-Baselines3's SAC; return its score and the seconds of training."""
    from stable_baselines3 import SAC as SB3  # noqa: PLC0415  (an optional dependency, and its usual name)

    model = SB3("MlpPolicy", ENVIRONMENT, learning_rate=1e-3, gamma=GAMMA, device="cpu", seed=seed)
    begin = time.perf_counter()
    model.learn(steps)
    seconds = time.perf_counter() - begin
    return score(lambda seen: model.predict(seen, deterministic=True)[0] / TORQUE), seconds


def main() -> None:
    """Train, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--sb3", action="store_true", help="train Stable-Baselines3's SAC, too")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, list[tuple[float, float]]] = {}
    for seed in range(options.first, options.first + options.seeds):
        for name, train in {"ludus": ludus, **({"stable-baselines3": sb3} if options.sb3 else {})}.items():
            reached, seconds = train(seed, options.steps)
            results.setdefault(name, []).append((reached, seconds))
            print(f"{name:<20} seed {seed}: {reached:8.1f} after {options.steps:,} steps, {seconds:.0f} s", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
