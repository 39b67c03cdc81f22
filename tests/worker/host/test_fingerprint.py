"""What a worker says of itself, and that every attempt keeps it."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from server.kit.db.database import Database
from server.lifecycle.claims.repository import RunQueue
from server.runs.repository import RunRepository
from tests.factories import make_run
from worker.host.fingerprint import fingerprint

NVIDIA_SMI = """#!/bin/sh
echo 'GPU-aaaa, NVIDIA H200, 570.86.15'
echo 'GPU-bbbb, NVIDIA H100 80GB HBM3, 570.86.15'
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that are found before the system's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def test_it_names_release_libraries_and_hardware() -> None:
    found = fingerprint(())

    assert found["release"] == importlib.metadata.version("ludus")
    assert found["torch"] == importlib.metadata.version("torch")
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["cpu"]
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["memory_bytes"] > 2**20
    assert "gpus" not in found


def test_it_names_the_slots_own_gpus_and_their_driver(tools: Path) -> None:
    program(tools, "nvidia-smi", NVIDIA_SMI)

    found = fingerprint(["GPU-bbbb", "GPU-unknown"])

    assert found["gpus"] == ["NVIDIA H100 80GB HBM3", "GPU-unknown"]
    assert found["driver"] == "570.86.15"


def test_a_tool_that_fails_leaves_its_facts_out_and_nothing_else(tools: Path) -> None:
    program(tools, "nvidia-smi", "#!/bin/sh\necho broken\nexit 9\n")

    found = fingerprint(["GPU-aaaa"])

    assert found["gpus"] == ["GPU-aaaa"]
    assert "driver" not in found
    assert found["release"]


def test_the_commit_is_the_settings_else_the_repositorys() -> None:
    root = Path(__file__).parents[3]

    assert fingerprint((), "1234abcd")["commit"] == "1234abcd"
    if (root / ".git").exists():
        head = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        assert fingerprint(())["commit"].removesuffix("-dirty") == head.stdout.strip()


def test_each_attempt_keeps_what_it_ran_on(database: Database) -> None:
    run = make_run(database)
    queue = RunQueue(database)
    assert queue.claim("one", -1.0, fingerprint={"release": "1", "cpu": "nul \x00 byte"}) is not None

    with database.read() as session:
        (attempt,) = RunRepository(session).attempts(run.id)

    assert attempt.fingerprint is not None
    assert attempt.fingerprint["release"] == "1"
    assert "\x00" not in attempt.fingerprint["cpu"]


def test_an_attempt_of_the_former_release_has_none(database: Database) -> None:
    run = make_run(database)
    RunQueue(database).claim("one", 10.0)

    with database.read() as session:
        assert RunRepository(session).attempts(run.id)[0].fingerprint is None
