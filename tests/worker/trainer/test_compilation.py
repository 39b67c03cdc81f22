"""Compiling in the background delays nobody, changes no result, and does without where there is no compiler."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ludus.config.behavior import PPOConfig
from tests.e2e.stack import environment
from tests.worker.rollouts import make_spec, random_rollout
from worker.learning.build import Demonstrations, build_algorithm
from worker.learning.networks.visual import VisualEncoder
from worker.trainer.compilation import bf16_pictures


def compiling(cache: Path, *meeting: str, **variables: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.worker.trainer.compiling", *meeting],
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
@pytest.mark.parametrize("is_rank", [False, True], ids=["alone", "rank"])
def test_updates_are_compiled_while_training_goes_on_and_stay_the_same(tmp_path: Path, *, is_rank: bool) -> None:
    # That the compiler knows the CPU's vector instructions need not be tried out, which takes five seconds.
    meeting = [str(tmp_path / "meeting")] if is_rank else []
    found = compiling(tmp_path, *meeting, TORCHINDUCTOR_VEC_ISA_OK="1")

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


SPEC = make_spec(observations=(2, (1, 20, 20)), branches=(3,))
CONFIG = PPOConfig.model_validate(
    {
        "hyperparameters": {"batch_size": 8, "buffer_size": 16, "num_epoch": 1},
        "network_settings": {"hidden_units": 8, "num_layers": 1},
    }
)


def test_an_update_in_bf16_is_nearly_the_one_in_float32_and_leaves_float32_weights() -> None:
    rollout = random_rollout(SPEC, [8, 8], np.random.default_rng(1))
    exact, rough = (build_algorithm(CONFIG, SPEC, torch.device("cpu"), 1, Demonstrations({})) for _ in range(2))

    expected = exact.update(rollout, 0)
    with bf16_pictures(enabled=True):
        measured = rough.update(rollout, 0)

    assert expected is not None
    assert measured is not None
    assert not VisualEncoder.in_bfloat16
    difference = abs(measured["Losses/Value Loss"] - expected["Losses/Value Loss"]) / expected["Losses/Value Loss"]
    assert 0 < difference < 0.02
    assert {weight.dtype for weight in rough.actor.parameters()} == {torch.float32}
    assert 0 < np.abs(rough.flat_weights() - exact.flat_weights()).max() < 1e-3
