"""The embedded stack (`ludus up`) from outside: time to a run's first action, and latency of lists beside a run.

    python benchmarks/embedded.py [--rounds 5] [--runs 100000] [--json FILE]

Start: seconds from the POST of a run to the first action that a simulator gets; the simulator joins at the same moment.
Lists: 100,000 runs in the database; pages with filter and order, over HTTP, while a run trains; 99th percentile.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx2

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ludus.client import Client
from ludus.sdk import Actions, ActionSpec, BehaviorSpec, ObservationSpec, ResetInfo, Simulation, StepBuilder, connect
from server.kit.db.database import Database
from server.kit.db.ids import new_id
from server.runs.models import Run, RunTag
from tests.e2e.stack import LudusUp, Player, cartpole
from tests.waiting import eventually

WARM_SECONDS = 5.0
"""Seconds until a worker has imported everything for the next run, after its start or after a run."""
QUERIES = (
    {"filter": 'state = "SUCCEEDED"', "order_by": "step desc"},
    {"filter": 'state = "FAILED" AND created_at > "2026-01-01T00:00:00Z"', "order_by": "created_at desc"},
    {"filter": 'tags = "nightly"', "order_by": "created_at desc"},
    {"filter": 'name = "run-7*"', "order_by": "name"},
    {"order_by": "updated_at desc"},
)


class FirstAction(Simulation):
    """A simulator that only wants to know when its first action comes."""

    behaviors = (BehaviorSpec("CartPole", (ObservationSpec((4,)),), ActionSpec(discrete_branches=(2,))),)

    def __init__(self) -> None:
        self.at: float | None = None

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        """Ask for an action."""
        del start
        builder.request_decision(agent=0, observation=[0.0] * 4)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        """Note the time."""
        del actions
        self.at = self.at or time.perf_counter()
        builder.request_decision(agent=0, observation=[0.0] * 4)


def first_action(stack: LudusUp, client: Client) -> float:
    """Return the seconds from the request to the first action."""
    simulation = FirstAction()
    begin = time.perf_counter()
    run = client.runs.create(cartpole())
    player = threading.Thread(target=connect, args=(simulation,), kwargs={"run": run.id, "server": stack.gateway})
    player.start()
    seconds = eventually(lambda: simulation.at, "the first action") - begin
    client.runs.cancel(run.id)
    client.runs.wait(run.id, timeout=30)
    player.join()
    return seconds


def fill(home: Path, count: int) -> None:
    """Enter finished runs as a year of CI would leave them."""
    chance = random.Random(1)
    now = time.time()
    config = cartpole()
    database = Database(f"sqlite:///{home / 'ludus.db'}")
    states = (("SUCCEEDED", "completed"), ("FAILED", "worker_lost"), ("CANCELLED", "user"))
    for block in range(0, count, 5_000):
        with database.write() as session:
            for number in range(block, min(block + 5_000, count)):
                state, reason = chance.choices(states, (8, 1, 1))[0]
                created = now - chance.random() * 3e7
                run = Run(
                    id=new_id("run"), kind="train", name=f"run-{number}", tags=["nightly"] if number % 100 == 0 else [],
                    state=state, stop_reason=reason, config=config, seed=1, stored_step=chance.randrange(500_000),
                    created_at=created, queued_at=created, started_at=created, finished_at=created + 60,
                    stored_updated_at=created + 60,
                )  # fmt: skip
                session.add(run)
                if run.tags:
                    session.add(RunTag(tag="nightly", run_id=run.id))
    database.close()


def list_times(stack: LudusUp, requests: int) -> list[float]:
    """Return the seconds of each request for a page of runs."""
    times = []
    with httpx2.Client(base_url=stack.api) as http:
        for number in range(requests):
            begin = time.perf_counter()
            http.get("/v1/runs", params={**QUERIES[number % len(QUERIES)], "page_size": "50"}).raise_for_status()
            times.append(time.perf_counter() - begin)
    return sorted(times)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stack = LudusUp(Path(folder) / "home")
        try:
            with stack.client() as client:
                starts = []
                for _ in range(options.rounds):
                    time.sleep(WARM_SECONDS)
                    starts.append(first_action(stack, client))
                print(
                    f"POST to first action: median {statistics.median(starts):.2f} s, worst {max(starts):.2f} s",
                    flush=True,
                )
                fill(stack.home, options.runs)
                run = client.runs.create(cartpole(max_steps=10_000_000))
                player = Player(stack, run.id)
                eventually(lambda: client.runs.get(run.id).step > 1000, "the run trains", 120)
                times = list_times(stack, 500)
                player.kill()
                client.runs.cancel(run.id)
        finally:
            stack.stop()
    p50, p99 = (1000 * times[int(len(times) * share)] for share in (0.5, 0.99))
    print(f"list {options.runs:,} runs while one trains: median {p50:.1f} ms, p99 {p99:.1f} ms")
    if options.json:
        options.json.write_text(
            json.dumps({"first_action_seconds": starts, "list_p50_ms": p50, "list_p99_ms": p99}, indent=2)
        )


if __name__ == "__main__":
    main()
