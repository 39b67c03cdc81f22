"""Return against policy lag: PPO as it is, with V-trace, and with the decoupled objective.

    python -m benchmarks.lag [--game cartpole ball] [--seeds 3] [--lags 0 1 2 4 8] [--rounds 80] [--json FILE]

Every round of 512 steps is played by the policy of `lag` updates before, as behind a slow link, and learned from by the
newest one. The game, the collector's recorder and the algorithm are the real ones, in one process; the time does not
matter. CartPole is the toy of `tests.toys.balance`: 8 at once, a return of 200 at most, some 22 at random; a ball on a
plate has 20 at most. The first `lag` rounds are played by the policy of the beginning. With a lag of 0 all objectives
are the same to the last bit, so that it has one row.

Two numbers per cell, each the mean over the seeds, with the worst seed: the return in the last ten rounds, and the mean
return over all rounds, which says how fast it was learned. A round in which no episode ended counts as the one before.
"""

import argparse
import json
import math
import platform
import time
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from tests.toys.late import GAMES, curve

OBJECTIVES: Final[dict[str, dict[str, bool]]] = {
    "plain": {},
    "vtrace": {"vtrace": True},
    "decoupled": {"decoupled_objective": True},
    "both": {"vtrace": True, "decoupled_objective": True},
}
LAST: Final = 10
"""Rounds that are the end."""


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", nargs="+", choices=GAMES, default=["cartpole"])
    parser.add_argument("--objective", nargs="+", choices=OBJECTIVES, default=["plain", "vtrace", "decoupled"])
    parser.add_argument("--lags", nargs="+", type=int, default=[0, 1, 2, 4, 8])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    began, figures = time.monotonic(), list[dict[str, Any]]()
    when = f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, Python {platform.python_version()}"
    print(f"{when}, seeds 1 to {options.seeds}, {options.rounds} rounds of 512 steps\n")
    print("| game | lag | objective | end (worst seed) | all rounds (worst seed) |\n| --- | --- | --- | --- | --- |")
    for name in options.game:
        for lag in options.lags:
            for title in options.objective if lag else ["plain"]:
                curves = [
                    curve(name, lag=lag, seed=seed, rounds=options.rounds, objective=OBJECTIVES[title])
                    for seed in range(1, options.seeds + 1)
                ]
                for scores in curves:
                    for number in range(1, len(scores)):
                        scores[number] = scores[number - 1] if math.isnan(scores[number]) else scores[number]
                ends, ways = [fmean(scores[-LAST:]) for scores in curves], [fmean(scores) for scores in curves]
                label = title if lag else "any"
                cells = " | ".join(f"{fmean(scores):.1f} ({min(scores):.1f})" for scores in (ends, ways))
                print(f"| {name} | {lag} | {label} | {cells} |", flush=True)
                figures.append({"game": name, "lag": lag, "objective": label, "curves": curves})
    print(f"\n{time.monotonic() - began:.0f} s")
    if options.json is not None:
        options.json.write_text(json.dumps({"made": when, "rounds": options.rounds, "figures": figures}))


if __name__ == "__main__":
    main()
