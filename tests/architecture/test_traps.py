"""Celery's traps (docs/workers.md): each has its test, and what would spring them is not there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRAPS = (ROOT / "docs" / "workers.md").read_text().split("## Celery's traps")[1]
ROWS = [line for line in TRAPS.splitlines() if line.startswith("| ")][2:]


@pytest.mark.parametrize("row", ROWS, ids=[row.split("|")[1].strip() for row in ROWS])
def test_every_trap_has_a_test(row: str) -> None:
    tests = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row)

    assert tests, "the row names its test"
    for path, name in tests:
        assert f"def {name}(" in (ROOT / path).read_text()


def test_celery_is_asked_for_nothing_that_it_does_not_keep() -> None:
    """No countdowns, no retries, no revocations: what shall happen stands in the database."""
    forbidden = re.compile(r"countdown=|\beta=|\.retry\(|control\.revoke\(|autoretry_for|acks_late=True|apply_async")
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for package in ("server", "worker")
        for path in (ROOT / package).rglob("*.py")
        for match in forbidden.finditer(path.read_text())
    ]

    assert found == []


def test_a_slot_forks_nothing() -> None:
    """Trainers are started by `subprocess`, which executes another program at once."""
    worker = ROOT / "worker"
    supervisor = list((worker / "host" / "supervisor").glob("*.py"))
    assert supervisor
    for file in (*supervisor, *(worker / "host" / f"{name}.py" for name in ("tasks", "process", "commands"))):
        assert not re.search(r"\bmultiprocessing\b|\bos\.fork\b", file.read_text()), file.name


def test_what_celery_forks_has_imported_neither_torch_nor_grpc() -> None:
    look = (
        "import sys, worker.host.tasks, worker.host.commands; print([m for m in ('torch', 'grpc') if m in sys.modules])"
    )

    answer = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True, cwd=ROOT)

    assert answer.stdout.strip() == "[]"
