"""A worker that claims until nothing is left: `python -m tests.server.attempts.claimer URL NAME`; prints its claims."""

import sys

from server.attempts.repository import RunQueue
from server.db.database import Database


def main(url: str, name: str) -> None:
    """Claim, and print `run epoch` for each."""
    queue = RunQueue(Database(url, synchronous="NORMAL"))
    sys.stdin.readline()  # everybody begins together
    while (claim := queue.claim(name, 600)) is not None:
        sys.stdout.write(f"{claim.run_id} {claim.epoch}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
