"""PPO on many CartPoles in one process, against Stable-Baselines3 with the same hyperparameters.

    python -m benchmarks.vector [--rounds 3] [--envs 64] [--steps 131072] [--only ARM ...] [--json FILE]
    python -m benchmarks.vector --alone [--envs 4096]

The environments are one vector environment (`gymnasium-vec:CartPole-v1`) or single ones (`gymnasium:CartPole-v1`), in
lockstep and threaded. Ours runs as it does in production, without the control plane: a trainer process, its collector
process and a simulator process. Its steps/s are counted between the first and the last summary, without any start-up;
those of Stable-Baselines3 (`peers/sb3_vector.py`, `DummyVecEnv`) are those of `learn` alone. The arms run in turns, the
figures are medians, and the result is their ratio. `--alone` measures the games under random actions, without learning:
`DummyVecEnv`, Gymnasium's own, and the adapter with encoding and decoding of its messages.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.alone import environment, train
from ludus.adapters.vector import make_simulation
from ludus.protocol.batches import ActionBatch
from ludus.protocol.codec import decode_step, encode_actions
from ludus.protocol.specs import BehaviorLayout
from ludus.sdk.session import Session
from ludus.sdk.simulation import ResetInfo
from ludus.sdk.steps import Actions

PEER = Path(__file__).resolve().parent / "peers" / "sb3_vector.py"
GAME = "CartPole-v1"


@dataclass(frozen=True)
class Size:
    """The size of a measurement."""

    envs: int
    steps: int
    buffer: int
    batch: int = 256
    epochs: int = 4

    def document(self, *, threaded: bool) -> dict[str, Any]:
        """Return the configuration of our run."""
        behavior = {
            "trainer_type": "ppo",
            "hyperparameters": {
                "batch_size": self.batch,
                "buffer_size": self.buffer,
                "num_epoch": self.epochs,
                "learning_rate": 3.0e-4,
                "learning_rate_schedule": "constant",
                "beta": 0.0,
                "epsilon": 0.2,
                "epsilon_schedule": "constant",
                "lambd": 0.95,
                "max_grad_norm": 0.5,
            },
            "network_settings": {"hidden_units": 64, "num_layers": 2, "activation": "tanh"},
            "reward_signals": {"extrinsic": {"gamma": 0.99}},
            "max_steps": self.steps,
            "time_horizon": max(self.buffer // self.envs, 1),
            "summary_freq": self.buffer,
            "threaded": threaded,
        }
        return {"behaviors": {"CartPole": behavior}, "seed": 1}


def ludus(library: str, size: Size, *, threaded: bool) -> float:
    """Return our steps/s."""
    with tempfile.TemporaryDirectory() as folder:
        game = f"{library}:{GAME}"
        outcome = train(size.document(threaded=threaded), Path(folder) / "run", game, size.envs, seconds=600.0)
    (first, began), (last, ended) = outcome.times[0], outcome.times[-1]
    return (last - first) / (ended - began)


def stable_baselines3(size: Size, *arguments: str) -> float:
    """Return the steps/s of Stable-Baselines3."""
    options = [f"--{name}={getattr(size, name)}" for name in ("envs", "steps", "buffer", "batch", "epochs")]
    command = [sys.executable, str(PEER), *options, *arguments]
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment()).stdout
    return float(json.loads(output.splitlines()[-1])["rate"])


def games_alone(size: Size, vectorization: str) -> float:
    """Return the steps/s of Gymnasium's vector environment under random actions."""
    envs = gymnasium.make_vec(GAME, num_envs=size.envs, vectorization_mode=vectorization)
    actions = np.random.default_rng(1).integers(0, 2, (size.steps // size.envs, size.envs))
    envs.reset(seed=1)
    began = time.perf_counter()
    for action in actions:
        envs.step(action)
    rate = actions.size / (time.perf_counter() - began)
    envs.close()
    return rate


def adapter_alone(size: Size) -> float:
    """Return the steps/s of the adapter under random actions, its messages encoded and decoded in this process."""
    simulation = make_simulation(GAME, size.envs, seed=1)
    session = Session(simulation.behaviors)
    layouts = {spec.name: BehaviorLayout(spec) for spec in simulation.behaviors}
    builder = session.new_step()
    simulation.reset(builder, ResetInfo(1, {}, 0, "alone", first=True))
    random, decisions = np.random.default_rng(1), 0
    began = time.perf_counter()
    while decisions < size.steps:
        actions = Actions()
        for request in session.requests(builder):
            for batch in decode_step(request.step, layouts):
                if batch.decisions is not None:
                    count = len(batch.decisions.agent_ids)
                    decisions += count
                    choices = random.integers(0, 2, (count, 1), np.int32)
                    answer = ActionBatch(batch.behavior, None, np.zeros((count, 0), np.float32), choices)
                    actions = session.actions(encode_actions(request.step.step_id, [answer]))
        builder = session.new_step()
        simulation.step(builder, actions)
    rate = decisions / (time.perf_counter() - began)
    simulation.close()
    return rate


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--steps", type=int, default=131_072)
    parser.add_argument("--buffer", type=int, help="2,048, or one step of each environment if that is more")
    parser.add_argument("--alone", action="store_true", help="the games, without learning")
    parser.add_argument("--only", nargs="+", help="arms; all by default")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    size = Size(options.envs, options.steps, options.buffer or max(2_048, options.envs))
    arms: dict[str, Callable[[], float]] = {"dummy": partial(stable_baselines3, size)}
    if options.alone:
        arms = {
            "dummy": partial(stable_baselines3, size, "--alone"),
            "sync": partial(games_alone, size, "sync"),
            "vector_entry_point": partial(games_alone, size, "vector_entry_point"),
            "adapter": partial(adapter_alone, size),
        }
    else:
        for library in ("gymnasium-vec", "gymnasium"):
            for threaded in (False, True):
                arms[f"{library}, {'threaded' if threaded else 'lockstep'}"] = partial(
                    ludus, library, size, threaded=threaded
                )
    figures: dict[str, list[float]] = {name: [] for name in options.only or arms}
    for _ in range(options.rounds):
        for name, rates in figures.items():
            rates.append(arms[name]())
            print(f"{name:<26}{rates[-1]:>12,.0f}", flush=True)
    medians = {name: statistics.median(rates) for name, rates in figures.items()}
    print(f"\n{size.envs} CartPoles, steps/s{'median':>19}{'/ dummy':>10}")
    for name, rate in medians.items():
        ratio = f"{rate / medians['dummy']:>10.2f}" if "dummy" in medians else ""
        print(f"{name:<26}{rate:>12,.0f}{ratio}")
    if options.json:
        options.json.write_text(json.dumps({"size": vars(size), "rates": figures}, indent=2))


if __name__ == "__main__":
    main()
