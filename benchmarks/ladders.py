"""Ladders: the cost of entering and rating a match, and the time of a large payoff matrix.

    python benchmarks/ladders.py [sqlite:////tmp/ladders.db | postgresql+psycopg://...]

Cost: a run reports matches of its policy against the snapshots of a window, at the rate and in the batches of training
with a match per 100 agent steps; the controller rates them every other second. The bar is 2 % of the machine's
time.

Answers: 100,000 matches between 200 snapshots, every pair of them about five times. The bar for the payoff matrix is
200 ms over HTTP. A plain aggregate over the ledger is timed beside the counts of pairs that the server keeps.
"""

import os
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import structlog
import uvicorn
from sqlalchemy import text

from ludus.config.run import RunConfig
from server.app.app import create_app
from server.app.serve import ApiServer
from server.app.services import Services
from server.kit.db.database import Database
from server.kit.db.migrate import upgrade_database
from server.kit.settings import Settings
from server.ladders.ratings import PAUSE_SECONDS, RatingJob
from server.ladders.refs import PlayedMatch, PlayedParticipant
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import RunQueue
from server.lifecycle.service import RunService
from server.runs.repository import NewRun
from tests.factories import RecordingWakeUp

MATCHES = 100_000
SNAPSHOTS = 200
COSTED = 5000
"""Number of matches in the measurement."""
WINDOW = 10
STEPS_PER_SECOND = 10_000.0
"""Agent steps that PPO learns from on two cores over the native protocol, roughly; see benchmarks/README.md."""
REPORT_SECONDS = 0.5
"""How often a trainer reports matches."""
REPEATS = 9
PATHS = (
    "payoffs",
    "ratings?page_size=1000",
    "ratings/history?player=1&points=500",
    "matches",
    "matches?filter=player%20%3D%201",
    "matches?filter=outcome%20%3D%20win",
)
PLAIN = """
SELECT a.player, b.player, a.rank < b.rank, a.rank = b.rank, COUNT(*)
FROM ladder_matches m
JOIN ladder_participants a ON a.ladder_id = m.ladder_id AND a.seq = m.seq AND a.position = 0
JOIN ladder_participants b ON b.ladder_id = m.ladder_id AND b.seq = m.seq AND b.position = 1
WHERE m.ladder_id = :ladder AND m.rated AND m.superseded_by IS NULL
GROUP BY 1, 2, 3, 4
"""


def make_match(number: int, first: int | None, second: int, draw: random.Random) -> PlayedMatch:
    """Describe a match between two policies."""
    step = 100 * number
    participants = (
        PlayedParticipant("Striker", 0, first, step if first is None else 1000 * first),
        PlayedParticipant("Striker", 1, second, 1000 * second),
    )
    outcome: Any = draw.choice(("win", "draw", "loss"))
    return PlayedMatch(number, "Striker", 0, 1.7e9 + number, step, participants, outcome, False, True, 1200.0)


def begin(database: Database) -> tuple[str, AttemptLedger]:
    """Queue and claim a run with self-play; return its id and the writer of its attempt."""
    with database.write() as session:
        config = {"behaviors": {"Striker": {"trainer_type": "ppo", "self_play": {}}}, "seed": 0}
        run_id = RunService(session, RecordingWakeUp()).create(NewRun(RunConfig.model_validate(config))).id
    claim = RunQueue(database).claim("bench", 36000.0, hint=run_id)
    assert claim is not None
    assert claim.run_id == run_id
    return run_id, AttemptLedger(database, claim)


def enter(ledger: AttemptLedger, matches: Sequence[PlayedMatch], at_once: int) -> float:
    """Enter matches; return the processor time of one."""
    begun = time.process_time()
    for start in range(0, len(matches), at_once):
        ledger.matches.append(matches[start : start + at_once])
    return (time.process_time() - begun) / len(matches)


def rate(database: Database, count: int, at_once: int) -> float:
    """Rate all matches, which are `count`; return the processor time of one."""
    begun = time.process_time()
    rater = RatingJob(database, at_once)
    while rater.rate():
        pass
    return (time.process_time() - begun) / count


def measure_cost(database: Database) -> None:
    """Print the cost of a match during training."""
    draw, ledger = random.Random(0), begin(database)[1]
    per_second = int(STEPS_PER_SECOND / 100)
    matches = [
        make_match(number, None, max(0, number // 200 - draw.randrange(WINDOW)), draw)
        for number in range(1, COSTED + 1)
    ]
    entering = enter(ledger, matches, int(per_second * REPORT_SECONDS))
    rating = rate(database, COSTED, int(per_second * PAUSE_SECONDS))
    core = 100 * (entering + rating) * per_second
    print(f"entering a match {1e6 * entering:.0f} us, rating it {1e6 * rating:.0f} us of processor time;")
    print(f"at {STEPS_PER_SECOND:.0f} agent steps/s that is {core:.2f} % of a core")
    print(f"= {core / (os.cpu_count() or 1):.2f} % of this machine")


def timed(act: Callable[[], object]) -> str:
    """Describe how long something takes: median, worst, and processor time; the first time is left out."""
    act()
    times, processor = [], []
    for _ in range(REPEATS):
        begun, used = time.perf_counter(), time.process_time()
        act()
        times.append(1000 * (time.perf_counter() - begun))
        processor.append(1000 * (time.process_time() - used))
    waited, worked = statistics.median(times), statistics.median(processor)
    return f"median {waited:6.1f} ms, worst {max(times):6.1f} ms, processor {worked:6.1f} ms"


def aggregate(database: Database, ladder_id: str) -> None:
    """Count the pairs from the ledger, without the counts that the server keeps."""
    with database.read() as session:
        session.execute(text(PLAIN), {"ladder": ladder_id}).all()


@contextmanager
def serving(database: Database, home: Path) -> Iterator[httpx2.Client]:
    """Serve the API on a free port."""
    services = Services.build(Settings(home=home), database=database, wake_up=RecordingWakeUp())
    config = uvicorn.Config(create_app(services.settings, services), log_config=None, access_log=False)
    server, listening = ApiServer(config, services), socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", timeout=60) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()


def answered(client: httpx2.Client, address: str) -> httpx2.Response:
    """Return an answer that is no error."""
    return client.get(address).raise_for_status()


def measure_answers(database: Database, home: Path) -> None:
    """Print how long the API takes for a large ladder."""
    draw, (run_id, ledger) = random.Random(1), begin(database)
    pairs = (draw.sample(range(SNAPSHOTS), 2) for _ in range(MATCHES))
    matches = [make_match(number, first, second, draw) for number, (first, second) in enumerate(pairs, 1)]
    enter(ledger, matches, 2000)
    rate(database, MATCHES, 2000)
    if database.engine.dialect.name == "postgresql":
        with database.write() as session:
            session.execute(text("ANALYZE"))
    with serving(database, home) as client:
        ladder_id = client.get(f"/v1/ladders/{run_id}").raise_for_status().json()["id"]
        for path in PATHS:
            address = f"/v1/ladders/{ladder_id}/{path}"
            print(f"GET {path:44} {timed(partial(answered, client, address))}")
        print(f"{'payoffs by a plain aggregate':48} {timed(lambda: aggregate(database, ladder_id))}")


def main() -> None:
    """Fill, rate, measure, print."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    folder = tempfile.TemporaryDirectory()
    home = Path(folder.name)
    database = Database(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{home / 'ladders.db'}")
    upgrade_database(database)
    print(f"{database.engine.dialect.name}, {MATCHES} matches between {SNAPSHOTS} snapshots")
    measure_cost(database)
    measure_answers(database, home)
    folder.cleanup()


if __name__ == "__main__":
    main()
