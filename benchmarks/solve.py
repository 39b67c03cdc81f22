"""Wall time until CartPole-v1 is solved, against Stable-Baselines3 with the same hyperparameters (its zoo's, tuned for
it).

    python benchmarks/solve.py [--seeds 3] [--json FILE]

8 environments, 32 steps each per rollout, batch 256, 20 epochs, 2 x 64 units with tanh, 100,000 steps at most. Solved:
the episodes that ended within 2,000 steps have a mean return of 475 or more. The clock runs from the first action to
that moment: start-up of processes and imports are in neither figure. Ours has one simulator of 8 environments, which
joins over gRPC.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.alone import train

SOLVED, WINDOW, STEPS = 475.0, 2_000, 100_000


def document(seed: int) -> dict[str, object]:
    """Return the hyperparameters in our words."""
    return {
        "behaviors": {
            "CartPole": {
                "trainer_type": "ppo",
                "hyperparameters": {
                    "batch_size": 256,
                    "buffer_size": 256,
                    "num_epoch": 20,
                    "learning_rate": 1e-3,
                    "learning_rate_schedule": "linear",
                    "beta": 0.0,
                    "beta_schedule": "constant",
                    "epsilon": 0.2,
                    "epsilon_schedule": "linear",
                    "lambd": 0.8,
                    "max_grad_norm": 0.5,
                },
                "network_settings": {"hidden_units": 64, "num_layers": 2, "activation": "tanh"},
                "reward_signals": {"extrinsic": {"gamma": 0.98}},
                "max_steps": STEPS,
                "time_horizon": 32,
                "summary_freq": WINDOW,
            }
        },
        "seed": seed,
    }


def ludus(seed: int) -> tuple[float, int]:
    """Return our seconds and steps until solved (infinite if it never was)."""
    with tempfile.TemporaryDirectory() as folder:
        outcome = train(document(seed), Path(folder) / "run", "CartPole-v1", 8, until=SOLVED)
    return outcome.solved_seconds, outcome.solved_step


def sb3(seed: int) -> tuple[float, int]:
    """Return Stable-Baselines3's seconds and steps until solved, in a process of its own."""
    command = [sys.executable, __file__, "--sb3", str(seed)]
    seconds, step = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-2:]
    return float(seconds), int(step)


def run_sb3(seed: int) -> tuple[float, int]:
    """Train Stable-Baselines3's PPO here."""
    import torch  # noqa: PLC0415
    from stable_baselines3 import PPO  # noqa: PLC0415
    from stable_baselines3.common.callbacks import BaseCallback  # noqa: PLC0415
    from stable_baselines3.common.env_util import make_vec_env  # noqa: PLC0415

    torch.set_num_threads(1)
    begin = 0.0
    solved = (float("inf"), 0)

    class Judge(BaseCallback):  # type: ignore[misc]  # without types where it is not installed
        def _on_training_start(self) -> None:
            nonlocal begin
            begin = time.perf_counter()
            self.returns: list[float] = []

        def _on_step(self) -> bool:
            nonlocal solved
            self.returns += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
            if self.num_timesteps % WINDOW == 0:
                if self.returns and statistics.fmean(self.returns) >= SOLVED:
                    solved = (time.perf_counter() - begin, self.num_timesteps)
                    return False
                self.returns = []
            return True

    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", 8, seed=seed),
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gae_lambda=0.8,
        gamma=0.98,
        ent_coef=0.0,
        learning_rate=lambda left: left * 1e-3,
        clip_range=lambda left: left * 0.2,
        seed=seed,
        device="cpu",
    )
    model.learn(STEPS, callback=Judge())
    return solved


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--sb3", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.sb3 is not None:
        print(*run_sb3(options.sb3))
        return
    ours, theirs = [], []
    for seed in range(1, options.seeds + 1):
        theirs.append(sb3(seed))
        ours.append(ludus(seed))
    medians = {
        name: statistics.median(seconds for seconds, _ in runs) for name, runs in (("ludus", ours), ("sb3", theirs))
    }
    ratio = medians["sb3"] / medians["ludus"]
    print(f"{'CartPole to 475':<20}{'seconds':>10}{'steps':>10}")
    for name, runs in (("stable-baselines3", theirs), ("ludus", ours)):
        seconds, steps = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"{name:<20}{seconds:>10.1f}{steps:>10,.0f}   {runs}")
    print(f"{'ratio (SB3 / ludus)':<20}{ratio:>10.2f}")
    if options.json:
        options.json.write_text(json.dumps({"ludus": ours, "stable-baselines3": theirs, "ratio": ratio}, indent=2))


if __name__ == "__main__":
    main()
