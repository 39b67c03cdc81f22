"""Does memory grow? RSS of every process of the embedded stack after ten minutes of training against after two.

    python benchmarks/soak.py [--minutes 10] [--json FILE]

Two simulators of 8 environments train with short rounds, frequent summaries and checkpoints, and a client reads events
and metrics all the time. Fails (exit code 1) if any process has grown by more than 5 %.
"""

import argparse
import contextlib
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ludus.client import ApiError, Client
from server.kit.processes import marked
from tests.e2e.stack import LudusUp, Player, cartpole
from tests.waiting import eventually

ALLOWED_GROWTH = 1.05
BASELINE_MINUTES = 2.0


def memory(stack: LudusUp, players: list[Player]) -> dict[int, tuple[str, int]]:
    """Return name and RSS in bytes of every process of the stack and of the players, by process id."""
    found = {}
    pids = [*marked(stack.mark), stack.process.pid]
    for player in players:
        pids += [
            player.process.pid,
            *(child.pid for child in psutil.Process(player.process.pid).children(recursive=True)),
        ]
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            words = process.cmdline()
            name = " ".join(word for word in words[1:5] if not word.startswith("-"))[-50:]
            found[pid] = (name, process.memory_info().rss)
    return found


def read_on(client: Client, run_id: str, over: threading.Event) -> None:
    """Send the requests of a user's tools."""
    while not over.wait(1.0):
        with contextlib.suppress(ApiError):
            client.metrics.list(run_id)
            client.metrics.series(run_id, "Environment/Cumulative Reward", points=200)
            list(client.events.list(run_id))


def main() -> int:
    """Measure, print, write; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    baseline = min(BASELINE_MINUTES, options.minutes / 5)
    over = threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        stack = LudusUp(Path(folder) / "home")
        players: list[Player] = []
        try:
            with stack.client() as client, stack.client() as reader:
                run = client.runs.create(cartpole(max_steps=1_000_000_000, checkpoint_interval=20_000))
                players += [Player(stack, run.id, environments=8) for _ in range(2)]
                eventually(lambda: client.runs.get(run.id).step > 1000, "the run trains", 120)
                threading.Thread(target=read_on, args=(reader, run.id, over), daemon=True).start()
                time.sleep(baseline * 60)
                before = memory(stack, players)
                time.sleep((options.minutes - baseline) * 60)
                after = memory(stack, players)
                steps = client.runs.get(run.id).step
                over.set()
                client.runs.cancel(run.id)
        finally:
            over.set()
            for player in players:
                player.kill()
            stack.stop()
    failed = False
    print(f"{steps:,} steps in {options.minutes:g} minutes")
    print(f"{'process':<52}{f'{baseline:g} min, MB':>14}{f'{options.minutes:g} min, MB':>14}{'growth':>9}")
    rows = []
    for pid, (name, begin) in before.items():
        end = after.get(pid, (name, 0))[1]
        growth = end / begin
        grew = growth > ALLOWED_GROWTH
        failed = failed or grew or end == 0
        rows.append({"process": name, "before": begin, "after": end, "growth": growth})
        verdict = "  GREW" if grew else "" if end else "  GONE"
        print(f"{name:<52}{begin / 1e6:>14.1f}{end / 1e6:>14.1f}{growth - 1:>+9.1%}{verdict}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
