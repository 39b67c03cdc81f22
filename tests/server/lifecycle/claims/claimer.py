"""Waits to be told, then claims until nothing is left: `python -m tests.server.lifecycle.claims.claimer URL NAME`."""

import random
import sys
import time

from server.kit.db.database import Database
from server.lifecycle.claims.repository import RunQueue


def main(url: str, name: str) -> None:
    """Claim, and print `run attempt number` for each."""
    queue = RunQueue(Database(url, synchronous="OFF"))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()  # all begin together
    claim = queue.claim(name, 600)
    assert claim is not None, "there are more runs than processes"
    sys.stdout.write(f"{claim.run_id} {claim.attempt}\n")
    sys.stdout.flush()
    sys.stdin.readline()  # each has one: from here on, none is still starting
    while (claim := queue.claim(name, 600)) is not None:
        sys.stdout.write(f"{claim.run_id} {claim.attempt}\n")
        time.sleep(random.uniform(0, 0.005))  # allow: sleep, because who never pauses keeps all others out


if __name__ == "__main__":
    main(*sys.argv[1:])
