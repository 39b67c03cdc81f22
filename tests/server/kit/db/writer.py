"""A writing process for `test_four_writers.py`: prints each write once it is committed.

`python -m tests.server.kit.db.writer URL RUN ATTEMPT WRITER SECONDS`
"""

import sys
import time

from ludus.schemas.states import RunKind
from server.kit.db.database import Database
from server.kit.errors import DatabaseUnavailable
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import Claim
from server.lifecycle.service import RunService
from server.metrics.points import MetricPoint
from tests.factories import RecordingWakeUp, make_run


def say(kind: str, what: object) -> None:
    """Tell the test."""
    sys.stdout.write(f"{kind} {what}\n")
    sys.stdout.flush()


def main(url: str, run_id: str, attempt: str, writer: str, seconds: str) -> None:
    """Write events and metrics of one attempt, runs, and their pauses, as fast as the database takes them."""
    database = Database(url)
    ledger = AttemptLedger(database, Claim(run_id, int(attempt), RunKind.TRAIN, "run", {}, 0, None, "worker"))
    say("ready", writer)
    sys.stdin.readline()  # everybody begins together
    end = time.monotonic() + float(seconds)
    number = 0
    while time.monotonic() < end:
        number += 1
        name = f"{writer}-{number}"
        try:
            ledger.event("something_happened", name)
            say("event", name)
            ledger.metrics.append([MetricPoint(f"behavior-{writer}", "value", number, 0.0, float(number))])
            say("point", name)
            made = make_run(database, name=name)
            say("run", name)
            with database.write() as session:
                RunService(session, RecordingWakeUp()).pause(made.id)
            say("paused", name)
        except DatabaseUnavailable as error:
            say("refused", error)


if __name__ == "__main__":
    main(*sys.argv[1:])
