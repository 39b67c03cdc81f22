"""From the command line of `ludus learn` to the first action that its game has carried out, its own server counted.

    python -m benchmarks.first_action [--rounds 5]

The command is a user's: a configuration, `--env` and `--no-graphics`, in an empty folder. The game is the tests' player
of Unity's protocol (`tests/unity/player.py`), which takes about a second to start, as a build does; it leaves after one
step, and the time at which it has written its summary is the figure. The first round warms the files' cache, and is
not counted.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.e2e.stack import LUDUS, environment

ROOT = Path(__file__).resolve().parents[1]
CONFIG = """
behaviors:
  Learner:
    trainer_type: ppo
    hyperparameters: {batch_size: 64, buffer_size: 512}
    max_steps: 100000
"""
BEHAVIORS = '[{"name": "Learner?team=0", "continuous": 2}]'
MOST_SECONDS = 60.0


def seconds_to_the_first_action(folder: Path) -> float:
    """Run the command once, and end it."""
    summary, build = folder / "summary.json", folder / "game.x86_64"
    player = f"{sys.executable} -m tests.unity.player --behaviors '{BEHAVIORS}' --steps 1"
    build.write_text(f'#!/bin/sh\ncd {ROOT}\nexec {player} "$@" > {summary}\n')
    build.chmod(0o755)
    (folder / "config.yaml").write_text(CONFIG)
    command = [*LUDUS, "learn", "config.yaml", "--run-id", "first", "--env", str(folder / "game"), "--no-graphics"]
    with (folder / "learn.log").open("wb") as log:
        began = time.time()
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=environment())
        while not (summary.exists() and summary.stat().st_size):
            if process.poll() is not None or time.time() > began + MOST_SECONDS:
                raise SystemExit((folder / "learn.log").read_text())
            time.sleep(0.02)
        seconds = summary.stat().st_mtime - began
        for _ in range(2):  # the second one ends it at once
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
        process.wait(MOST_SECONDS)
    return seconds


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    figures = []
    for _ in range(rounds + 1):
        with tempfile.TemporaryDirectory() as folder:
            figures.append(seconds_to_the_first_action(Path(folder)))
    listed, median = ", ".join(f"{each:.2f}" for each in figures[1:]), statistics.median(figures[1:])
    print(f"ludus learn to the first action: median {median:.2f} s ({listed}); {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
