"""Recovery: from kill -9 of a trainer, and of a worker, until an action is answered again; and the lost steps.

    python -m benchmarks.recovery [--rounds 5]

Starts `ludus up` with the default lease and one CartPole run. The bars: a trainer is replaced on the same worker within
5 s, a worker within its lease and 15 s, and at most one checkpoint interval of steps is learned again.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ludus.client import Client
from tests.e2e.stack import LudusUp, Player, cartpole, wait_for_step
from tests.waiting import eventually

INTERVAL = 10_000
"""Steps between two checkpoints: many more than are taken between two heartbeats, by which the server knows them."""


def recover(client: Client, run: str, kill: Callable[[], object]) -> tuple[float, int]:
    """Kill, and return the seconds until steps are counted in the next attempt, and the steps that were lost."""
    number = client.runs.get(run).attempt
    before = client.runs.get(run).step
    kill()
    began = time.monotonic()
    eventually(lambda: client.runs.get(run).attempt > number, "another attempt", 60)
    attempt = eventually(lambda: next((one for one in client.runs.attempts(run) if one.number > number), None), "it")
    begin = 0 if attempt.resumed_from is None else client.checkpoints.get(run, attempt.resumed_from).step
    eventually(lambda: client.runs.get(run).step > begin, "an action is answered", 60)
    return time.monotonic() - began, max(0, before - begin)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stack = LudusUp(Path(folder), LUDUS_WORKER__HEARTBEAT_SECONDS="0.5", LUDUS_CONTROLLER__RESTART_BUDGET="1000")
        try:
            with stack.client() as client:
                run = client.runs.create(cartpole(max_steps=10**8, checkpoint_interval=INTERVAL))
                player = Player(stack, run.id)

                def trainer() -> None:
                    max(stack.processes("worker.trainer"), key=lambda each: each.cpu_times().user).kill()

                def worker() -> None:
                    stack.children()["worker"].kill()

                for name, kill in (("trainer", trainer), ("worker", worker)):
                    results = []
                    for _ in range(options.rounds):
                        wait_for_step(client, run, client.runs.get(run.id).step + INTERVAL, 120)
                        time.sleep(6)  # the next interpreter is warm after that
                        results.append(recover(client, run.id, kill))
                    seconds, lost = zip(*results, strict=True)
                    print(
                        f"kill -9 of the {name}: steps again after {statistics.median(seconds):.1f} s in the median, "
                        f"{max(seconds):.1f} s at most; {max(lost)} steps lost at most, one interval is {INTERVAL}"
                    )
                player.kill()
        finally:
            stack.stop()


if __name__ == "__main__":
    main()
