"""PPO over the native protocol, learning included, against Stable-Baselines3 with environments in its own process.

    python benchmarks/end_to_end.py [--rounds 3] [--json FILE] [--only NAME]

Both train on CartPole with the same sizes (buffer 12,000, batch 64, 3 epochs, separate actor and critic of 2 x 128
units). Ours runs as it does in production, without the control plane: a trainer process, its collector process, and
simulator processes that join over gRPC. Steps/s are counted from the end of the first round to the end of the last
one, without any start-up. The programs run in turn; the figures are medians, and the result is their
ratio.
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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.alone import train

ROUND, ROUNDS_TIMED = 12_000, 4


@dataclass(frozen=True)
class Scenario:
    """Number and form of the simulators."""

    name: str
    simulators: int
    environments: int
    """Per simulator."""


SCENARIOS = (Scenario("1x12", 1, 12), Scenario("1x64", 1, 64), Scenario("16x1", 16, 1))


def ludus(scenario: Scenario, *, threaded: bool) -> float:
    """Return our steps/s."""
    document = {
        "behaviors": {
            "CartPole": {
                "trainer_type": "ppo",
                "hyperparameters": {"batch_size": 64, "buffer_size": ROUND, "num_epoch": 3},
                "network_settings": {"hidden_units": 128, "num_layers": 2},
                "max_steps": ROUND * (ROUNDS_TIMED + 1),
                "time_horizon": 1000,
                "summary_freq": ROUND,
                "threaded": threaded,
            }
        },
        "seed": 1,
    }
    with tempfile.TemporaryDirectory() as folder:
        outcome = train(document, Path(folder) / "run", "CartPole-v1", scenario.environments, scenario.simulators)
    times = [at for step, at in outcome.times if step % ROUND == 0]
    return ROUND * (len(times) - 1) / (times[-1] - times[0])


def sb3(environments: int) -> float:
    """Return Stable-Baselines3's steps/s, in a process of its own like our trainer."""
    command = [sys.executable, __file__, "--sb3", str(environments)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def run_sb3(environments: int) -> float:
    """Train Stable-Baselines3's PPO here and return its steps/s, the first rollout and update excluded."""
    import torch  # noqa: PLC0415
    from stable_baselines3 import PPO  # noqa: PLC0415
    from stable_baselines3.common.callbacks import BaseCallback  # noqa: PLC0415
    from stable_baselines3.common.env_util import make_vec_env  # noqa: PLC0415

    torch.set_num_threads(1)
    times: list[float] = []

    class Clock(BaseCallback):  # type: ignore[misc]  # without types where it is not installed
        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            times.append(time.perf_counter())

    steps = ROUND // environments
    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", environments),
        n_steps=steps,
        batch_size=64,
        n_epochs=3,
        device="cpu",
        policy_kwargs={"net_arch": {"pi": [128, 128], "vf": [128, 128]}},
    )
    model.learn(steps * environments * (ROUNDS_TIMED + 1), callback=Clock())
    return steps * environments * (len(times) - 1) / (times[-1] - times[0])


def measure(scenario: Scenario, rounds: int) -> dict[str, float]:
    """Return the medians of all contestants, measured in turns."""
    total = scenario.simulators * scenario.environments
    contestants: dict[str, Callable[[], float]] = {
        "stable-baselines3": lambda: sb3(total),
        "lockstep": lambda: ludus(scenario, threaded=False),
        "threaded": lambda: ludus(scenario, threaded=True),
    }
    figures: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, contestant in contestants.items():
            figures[name].append(contestant())
    return {name: statistics.median(values) for name, values in figures.items()}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--only", help="one scenario")
    parser.add_argument("--sb3", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.sb3:
        print(run_sb3(options.sb3))
        return
    results = {}
    print(
        f"{'PPO end to end':<16}{'SB3 steps/s':>14}{'lockstep':>12}{'ratio':>8}{'threaded':>12}{'ratio':>8}", flush=True
    )
    for scenario in SCENARIOS:
        if options.only in {None, scenario.name}:
            medians = measure(scenario, options.rounds)
            base = medians["stable-baselines3"]
            results[scenario.name] = {
                **medians,
                **{f"{name} ratio": medians[name] / base for name in ("lockstep", "threaded")},
            }
            print(
                f"{scenario.name:<16}{base:>14,.0f}{medians['lockstep']:>12,.0f}{medians['lockstep'] / base:>8.2f}"
                f"{medians['threaded']:>12,.0f}{medians['threaded'] / base:>8.2f}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
