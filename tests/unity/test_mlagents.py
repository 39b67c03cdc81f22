"""ML-Agents itself holds the conversations of `cases.py` with the player, and keeps the rules that others are held to.

Needs ML-Agents 1.1.0 in an environment of its own: LUDUS_TEST_MLAGENTS names its `mlagents-learn`.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.unity.cases import CASES, SEED, Case
from tests.unity.descriptions import Behavior, Package
from tests.unity.player import Player
from tests.unity.transcripts import check_transcript

EXECUTABLE = os.environ.get("LUDUS_TEST_MLAGENTS")
PORT = 5004
pytestmark = [
    pytest.mark.mlagents,
    pytest.mark.timeout(180),
    pytest.mark.skipif(EXECUTABLE is None, reason="LUDUS_TEST_MLAGENTS names no mlagents-learn"),
]


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Callable[[Case], Path]]:
    """Start ML-Agents with a case's configuration, waiting on port 5004; returns where its log goes."""
    processes = []

    def start(case: Case) -> Path:
        (tmp_path / "case.yaml").write_text(yaml.safe_dump(case.configuration, sort_keys=False))
        command = f"{EXECUTABLE} case.yaml --run-id case --force --torch-device cpu --seed {SEED}"
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": ""}
        log = tmp_path / "log.txt"
        with log.open("w") as file:
            processes.append(
                subprocess.Popen(
                    command.split(), cwd=tmp_path, stdout=file, stderr=file, env=environment, start_new_session=True
                )
            )
        return log

    yield start
    for process in processes:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("name", CASES)
def test_mlagents_plays_and_keeps_the_rules(name: str, train: Callable[[Case], Path]) -> None:
    case = CASES[name]
    log = train(case)
    player = Player(PORT, case.behaviors, package=case.package, stats=case.stats, record=True, patience=90, timeout=90)

    summary = player.play(case.steps)

    assert check_transcript(player.transcript, seed=SEED) == [], log.read_text()[-2000:]
    assert summary.forbidden_choices == 0
    assert all(summary.episodes.values())
    if case.max_steps < case.steps:
        assert (summary.ending, summary.resets) == ("ended", 1)
        assert summary.parameters["size"][0] == "uniform"
    else:
        assert (summary.ending, summary.steps) == ("left", case.steps)


def test_mlagents_refuses_another_major_version(train: Callable[[Case], Path]) -> None:
    case = Case((Behavior(continuous=1),), steps=5)
    train(case)
    player = Player(PORT, case.behaviors, package=Package(communication="2.0.0"), record=True, patience=90, timeout=90)

    assert player.play(5).ending == "inference"
    assert check_transcript(player.transcript, seed=SEED) == []
