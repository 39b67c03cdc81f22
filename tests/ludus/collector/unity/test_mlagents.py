"""The same players play with ML-Agents and with a trainer of ours, from the same files and seeds.

What the protocol fixes is the same in both conversations: what the player says but for its rewards, the command of each
reply, how many actions of which sizes there are for whom, parameters and engine configuration.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from ludus.protocol.mlagents import unity_pb2
from tests.e2e.stack import environment
from tests.unity.cases import CASES, SEED, Case
from tests.unity.communicator import Transcript
from tests.unity.player import Player
from tests.unity.side_channels import ANALYTICS, frames
from tests.unity.transcripts import check_transcript
from tests.waiting import eventually

MLAGENTS = os.environ.get("LUDUS_TEST_MLAGENTS")
EDITOR_PORT = 5004
PATIENCE = 120.0
pytestmark = [
    pytest.mark.mlagents,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(MLAGENTS is None, reason="LUDUS_TEST_MLAGENTS names no mlagents-learn"),
]

ENDLESS = [name for name, case in CASES.items() if case.max_steps > case.steps]
"""Cases without a curriculum, which Ludus does not have."""


@contextmanager
def trainer(command: list[str], log: Path, variables: dict[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a trainer in a process group of its own, until the end of the block."""
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=log.parent, stdout=output, stderr=output, env=variables, start_new_session=True
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def mlagents(case: Case, folder: Path) -> Iterator[int]:
    """Start ML-Agents and return its port."""
    (folder / "mlagents.yaml").write_text(yaml.safe_dump(case.configuration, sort_keys=False))
    command = f"{MLAGENTS} mlagents.yaml --run-id case --force --torch-device cpu --seed {SEED}"
    variables = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": ""}
    with trainer(command.split(), folder / "mlagents.log", variables):
        yield EDITOR_PORT


@contextmanager
def ludus(case: Case, folder: Path) -> Iterator[int]:
    """Start a trainer of ours, alone, and return its port."""
    (folder / "ludus.yaml").write_text(yaml.safe_dump({**case.configuration, "seed": SEED}, sort_keys=False))
    command = [sys.executable, "-m", "worker.trainer", "ludus.yaml", "--scratch", "scratch"]
    log = folder / "ludus.log"
    with trainer(command, log, environment()) as process:

        def listening() -> re.Match[str] | None:
            assert process.poll() is None, log.read_text()
            return re.search(r'"address": "127\.0\.0\.1:(\d+)"', log.read_text())

        yield int(eventually(listening, "it listens", PATIENCE)[1])


def play(case: Case, port: int) -> Transcript:
    """Play a case, and return the conversation."""
    player = Player(
        port, case.behaviors, package=case.package, stats=case.stats, record=True, patience=PATIENCE, timeout=PATIENCE
    )
    assert player.play(case.steps).ending == "left"
    return player.transcript


def said(transcript: Transcript) -> list[unity_pb2.UnityMessageProto]:
    """Return what a player said, without what its trainer's actions were worth."""
    messages = [message for direction, message in transcript if direction == "sent"]
    for message in messages:
        for listed in message.unity_output.rl_output.agentInfos.values():
            for info in listed.value:
                info.reward = info.group_reward = 0.0
    return messages


def answered(transcript: Transcript) -> list[dict[str, Any]]:
    """Return the outlines of a trainer's replies."""
    return [outline(message) for direction, message in transcript if direction == "received"]


def outline(message: unity_pb2.UnityMessageProto) -> dict[str, Any]:
    """Return what the protocol fixes of a reply."""
    welcome, answer = message.unity_input.rl_initialization_input, message.unity_input.rl_input
    return {
        "status": message.header.status,
        "welcome": welcome.SerializeToString(),
        "command": answer.command,
        "actions": {
            name: [
                (len(action.continuous_actions), len(action.discrete_actions), len(action.vector_actions_deprecated))
                for action in listed.value
            ]
            for name, listed in answer.agent_actions.items()
        },
        "side channels": [frame for frame in frames(answer.side_channel) if frame[0] != ANALYTICS],
    }


@pytest.mark.parametrize("name", ENDLESS)
def test_a_player_hears_from_us_what_it_hears_from_mlagents(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    with mlagents(case, tmp_path) as port:
        theirs = play(case, port)
    with ludus(case, tmp_path) as port:
        ours = play(case, port)

    assert check_transcript(theirs, seed=SEED) == []
    assert check_transcript(ours, seed=SEED) == []
    assert said(ours) == said(theirs)
    assert answered(ours) == answered(theirs)
