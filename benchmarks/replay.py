"""Replay: milliseconds to draw 256 transitions from 1,000,000, and bytes per transition of a picture.

    python benchmarks/replay.py [--json FILE]

The vectors are 3DBall's: 8 numbers and 2 columns. Pictures are 84 x 84 x 3 bytes in episodes of 500 steps. Bars: 1 ms,
and 1.1 times the picture. Draws are random rows of 60 MB, so they measure the memory's latency.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from ludus.collector.segments import SegmentEnd
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from worker.experience.replay import ReplayBuffer
from worker.experience.rollout import Rollout

CAPACITY, COUNT, HORIZON = 1_000_000, 256, 1000
PICTURE = (3, 84, 84)
PICTURES, PICTURE_EPISODE = 5000, 500
VECTORS = BehaviorSpec("3DBall", (ObservationSpec((8,)),), ActionSpec(2))
SEEING = BehaviorSpec("Seeing", (ObservationSpec(PICTURE, dtype="uint8"),), ActionSpec(2))


def segment(spec: BehaviorSpec, steps: int, episode: int) -> Rollout:
    """Return one whole episode of random experience."""
    item = spec.observations[0]
    if item.dtype == "uint8":
        seen = torch.randint(0, 256, (steps + 1, *item.shape), dtype=torch.uint8)
    else:
        seen = torch.randn(steps + 1, *item.shape)
    zero = torch.zeros(1, dtype=torch.int64)
    return Rollout(
        observations=[seen[:-1]],
        next_observations=[seen[-1:]],
        continuous=torch.rand(steps, 2) * 2 - 1,
        discrete=torch.zeros(steps, 0, dtype=torch.int64),
        log_probs=torch.zeros(steps, 2),
        action_masks=None,
        rewards=torch.randn(steps),
        group_rewards=torch.zeros(steps),
        versions=torch.zeros(steps, dtype=torch.int64),
        lengths=torch.tensor([steps]),
        endings=torch.tensor([int(SegmentEnd.TERMINATED)], dtype=torch.uint8),
        starts_episode=torch.ones(1, dtype=torch.bool),
        memories=None,
        ticks=torch.arange(steps),
        successor_ticks=zero + steps,
        simulators=zero,
        agents=zero,
        groups=zero,
        episodes=zero + episode,
        sequences=zero,
        mates_alive=zero.bool(),
    )


def filled(spec: BehaviorSpec, transitions: int, episode: int) -> ReplayBuffer:
    """Return a buffer with so many transitions."""
    buffer = ReplayBuffer(spec, CAPACITY)
    for number in range(transitions // episode):
        buffer.store(segment(spec, episode, number))
    assert len(buffer) == transitions
    return buffer


def bytes_of(buffer: ReplayBuffer) -> int:
    """Return the bytes of all rows that were ever written."""
    state = buffer.state_dict()
    return sum(column.nbytes for part in ("steps", "observations", "successors") for column in state[part])


def milliseconds(call: Callable[[], object], times: int = 500) -> float:
    """Return the median of some calls."""
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds) * 1e3


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(1)
    vectors = filled(VECTORS, CAPACITY, HORIZON)
    pictures = filled(SEEING, PICTURES, PICTURE_EPISODE)
    picture_bytes = torch.Size(PICTURE).numel()
    one, ten = segment(VECTORS, 1, 10**6), segment(VECTORS, 10, 10**6)

    def starts() -> torch.Tensor:
        return torch.randint(len(vectors), (16,), generator=generator)

    figures = {
        "draw 256 of 1,000,000 vectors, ms": milliseconds(lambda: vectors.sample(COUNT, generator)),
        "draw 16 sequences of 16 of them, ms": milliseconds(lambda: vectors.sequences(starts(), 16)),
        "store 1 step, ms": milliseconds(lambda: vectors.store(one)),
        "store 10 steps, ms": milliseconds(lambda: vectors.store(ten)),
        "draw 64 of 5,000 pictures, ms": milliseconds(lambda: pictures.sample(64, generator), 50),
        "bytes per vector transition": bytes_of(vectors) / len(vectors),
        "bytes per transition with a picture / bytes of the picture": bytes_of(pictures) / PICTURES / picture_bytes,
    }
    for name, figure in figures.items():
        print(f"{name:<62}{figure:>9.3f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
