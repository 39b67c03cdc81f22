"""Updates of PPO and SAC against ML-Agents' at 3DBall's sizes: samples/s, one thread each, A B A B.

    python benchmarks/mlagents.py --python PEER/bin/python [--device cuda] [--json FILE]

PEER is an environment that has ML-Agents 1.1.0 (benchmarks/README.md says how to make one). Both learn from the same
amount of random experience of 12 agents with 8 observations and 2 continuous actions, with ML-Agents' own
hyperparameters for 3DBall (`peers/3dball_*.yaml`). ML-Agents' figure is only its `_update_policy`: its computations
for each trajectory before that (values, advantages) are in our time and not in its.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ludus.config.behavior import PPOConfig, SACConfig
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from tests.worker.rollouts import random_rollout
from worker.learning.build import Demonstrations, build_algorithm

HERE = Path(__file__).resolve().parent / "peers"
SPEC = BehaviorSpec("3DBall", (ObservationSpec((8,)),), ActionSpec(continuous_size=2))
AGENTS, STEPS, SAC_UPDATES = 12, 1000, 100
CPU = torch.device("cpu")


def synchronize(device: torch.device) -> None:
    """Wait for the GPU: updates return before it has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def settings(kind: str) -> dict[str, Any]:
    """Return the behavior's section."""
    section: dict[str, Any] = yaml.safe_load((HERE / f"3dball_{kind}.yaml").read_text())["behaviors"]["3DBall"]
    return section


def our_ppo(device: torch.device) -> Callable[[], tuple[float, int]]:
    """Return a call that updates our PPO once and returns seconds and samples."""
    config = PPOConfig.model_validate(settings("ppo"))
    ppo = build_algorithm(config, SPEC, device, 1, Demonstrations({}))
    rollout = random_rollout(SPEC, [STEPS] * AGENTS, np.random.default_rng(1))
    samples = AGENTS * STEPS * config.hyperparameters.num_epoch

    def update() -> tuple[float, int]:
        begin = time.perf_counter()
        ppo.update(rollout, 0)
        synchronize(device)
        return time.perf_counter() - begin, samples

    return update


def our_sac(device: torch.device) -> Callable[[], tuple[float, int]]:
    """Return a call that performs `SAC_UPDATES` updates of our SAC and returns seconds and samples."""
    config = SACConfig.model_validate(settings("sac"))
    sac = build_algorithm(config, SPEC, device, 1, Demonstrations({}))
    step = AGENTS * STEPS
    due = round(SAC_UPDATES * config.hyperparameters.steps_per_update)
    sac.update(random_rollout(SPEC, [STEPS] * AGENTS, np.random.default_rng(1)), step)
    fresh = random_rollout(SPEC, [due], np.random.default_rng(2))

    def update() -> tuple[float, int]:
        nonlocal step
        step += fresh.steps
        begin = time.perf_counter()
        sac.update(fresh, step)
        synchronize(device)
        return time.perf_counter() - begin, SAC_UPDATES * config.hyperparameters.batch_size

    return update


@contextmanager
def mlagents(python: Path, kind: str, device: torch.device) -> Iterator[Callable[[], tuple[float, int]]]:
    """Return a call that makes ML-Agents, in its own process, update once."""
    command = [str(python), str(HERE / "mlagents_update.py"), kind, str(HERE / f"3dball_{kind}.yaml"), str(device)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        assert peer.stdin is not None
        assert peer.stdout is not None
        assert peer.stdout.readline() == "ready\n"

        def update() -> tuple[float, int]:
            print(file=peer.stdin, flush=True)
            seconds, samples = peer.stdout.readline().split()  # type: ignore[union-attr]  # a pipe
            return float(seconds), int(samples)

        yield update
        peer.stdin.close()


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, required=True, help="interpreter of the environment with ML-Agents")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--device", type=torch.device, default=torch.device("cpu"), help="where both learn: cpu, cuda, cuda:N"
    )
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    print(f"{'update':<8}{'ML-Agents, samples/s':>24}{'ludus, samples/s':>20}{'ratio':>8}")
    for kind, make in (("ppo", our_ppo), ("sac", our_sac)):
        ours = make(options.device)
        with mlagents(options.python, kind, options.device) as theirs:
            rates: dict[str, list[float]] = {"mlagents": [], "ludus": []}
            for turn in range(options.rounds + 1):
                for name, update in (("mlagents", theirs), ("ludus", ours)):
                    seconds, samples = update()
                    if turn:  # the first one of each warms up
                        rates[name].append(samples / seconds)
        medians = {name: statistics.median(values) for name, values in rates.items()}
        ratio = medians["ludus"] / medians["mlagents"]
        print(f"{kind:<8}{medians['mlagents']:>24,.0f}{medians['ludus']:>20,.0f}{ratio:>8.2f}")
        figures[kind] = {"samples_per_second": rates, "ratio": ratio}
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
