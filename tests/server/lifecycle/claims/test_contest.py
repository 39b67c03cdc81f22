"""Many processes want the same runs: each run is claimed once, by one of them."""

import subprocess
import sys
from collections import Counter

import pytest
from sqlalchemy import text

from server.kit.db.database import Database
from tests.conftest import POSTGRESQL_ONLY
from tests.factories import make_run


def series(url: str, runs: int, workers: int) -> list[list[str]]:
    """Let so many processes claim so many runs; return the lines that each has printed."""
    database = Database(url, synchronous="OFF")
    columns = [column.name for column in type(make_run(database)).__table__.columns]
    chosen = ", ".join({"id": "'run_' || i", "owner": "'owner' || (i % 5)"}.get(name, name) for name in columns)
    numbers = f"WITH RECURSIVE numbers(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM numbers WHERE i < {runs})"
    with database.write() as session:
        session.execute(text(f"INSERT INTO runs ({', '.join(columns)}) {numbers} SELECT {chosen} FROM runs, numbers"))
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.server.lifecycle.claims.claimer", url, f"worker-{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(workers)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    _let_go_on(processes)
    first = [process.stdout.readline() for process in processes if process.stdout is not None]
    _let_go_on(processes)
    rest = [process.communicate()[0] for process in processes]
    printed = [(own + others).splitlines() for own, others in zip(first, rest, strict=True)]
    assert [process.returncode for process in processes] == [0] * workers
    with database.read() as session:
        attempts = session.execute(text("SELECT run_id, worker_id FROM attempts")).all()
        events = session.execute(text("SELECT count(*) FROM events WHERE type = 'run_claimed'")).scalar_one()
        numbers = session.execute(text("SELECT min(attempt), max(attempt), count(*) FROM runs")).one()
    database.close()
    by_worker = Counter(worker for _, worker in attempts)
    assert [by_worker[f"worker-{number}"] for number in range(workers)] == [len(lines) for lines in printed]
    assert (len(attempts), events, tuple(numbers)) == (runs, runs, (1, 1, runs))
    return printed


def _let_go_on(processes: "list[subprocess.Popen[str]]") -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()


def once_each(printed: list[list[str]], runs: int) -> None:
    claims = [line for lines in printed for line in lines]
    assert len(claims) == len(set(claims)) == runs
    assert {line.split()[1] for line in claims} == {"1"}


@pytest.mark.long
def test_contested_claims_of_processes_have_one_winner_each(database_url: str) -> None:
    once_each(series(database_url, 60, workers=2), 60)


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("database_url", POSTGRESQL_ONLY, indirect=True)
def test_ten_thousand_contested_claims_have_one_winner_each(database_url: str) -> None:
    once_each(series(database_url, 10_000, workers=8), 10_000)
