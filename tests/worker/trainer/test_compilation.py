"""Compiling in the background delays nobody, changes no result, and does without where there is no compiler."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.stack import environment


def compiling(cache: Path, **variables: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.worker.trainer.compiling"],
        capture_output=True,
        text=True,
        env={**environment(), "TORCHINDUCTOR_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1", **variables},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler here")
def test_updates_are_compiled_while_training_goes_on_and_stay_the_same(tmp_path: Path) -> None:
    # That the compiler knows the CPU's vector instructions need not be tried out, which takes five seconds.
    found = compiling(tmp_path, TORCHINDUCTOR_VEC_ISA_OK="1")

    assert found["events"] == ["compiled"]
    assert max(found["waited"]) < 1.0, "nobody waits for the compiler"
    assert found["moved"] > 1e-3
    assert found["difference"] < 1e-5  # fused operations round otherwise


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_without_a_compiler_training_goes_on_as_it_is_and_an_event_says_so(tmp_path: Path) -> None:
    found = compiling(tmp_path, CXX=str(tmp_path / "no-compiler"), PATH="/nowhere")

    assert found["events"] == ["compilation_failed"]
    assert max(found["waited"]) < 1.0
    assert found["moved"] > 1e-3
    assert found["difference"] == 0.0
