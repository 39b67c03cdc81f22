"""Tests that share a stack run in one process: else each process of xdist would start one, beside the others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import os, pathlib, pytest

@pytest.mark.xdist_group("stack")
@pytest.mark.parametrize("number", range(6))
def test_grouped(number):
    pathlib.Path(f"{__name__}-{number}").write_text(os.environ["PYTEST_XDIST_WORKER"])
"""


@pytest.mark.long
def test_a_group_of_tests_runs_in_one_process(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_collection_modifyitems")
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / name).write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]")

    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "--rootdir", str(tmp_path)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command, cwd=tmp_path, env={**kept, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout
    processes = [path.read_text() for path in tmp_path.glob("test_*-*")]
    assert (len(processes), len(set(processes))) == (12, 1)
