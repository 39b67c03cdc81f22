"""A trainer whose updates two processes share, from its start to its end."""

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from ludus.sdk import SimulatorError, connect
from tests.worker.trainer.conftest import StartTrainer, points_of, reports
from tests.worker.trainer.test_alone import NETWORK, HideAndSeek

PPO = {"batch_size": 32, "num_epoch": 1, "buffer_size": 64}
SAC = {"batch_size": 16, "buffer_size": 256, "steps_per_update": 8}


def play(address: str) -> None:
    with suppress(SimulatorError):
        connect(HideAndSeek(), run="alone", server=address, connect_timeout_seconds=1.0)


def processes_of(folder: Path) -> list[psutil.Process]:
    """The processes that were started for a trainer whose scratch folder this is."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(word.startswith(str(folder)) for word in process.cmdline()):
                found.append(process)
    return found


@pytest.mark.long
@pytest.mark.timeout(240)
def test_two_processes_train_ppo_and_sac_together_and_leave_nothing_behind(start: StartTrainer, tmp_path: Path) -> None:
    document = {
        "seed": 1,
        "torch_settings": {"device": "cpu", "processes": 2},
        "behaviors": {
            "Hider": {"hyperparameters": PPO, "network_settings": NETWORK, "max_steps": 192, "summary_freq": 64},
            "Seeker": {
                "trainer_type": "sac",
                "hyperparameters": SAC,
                "network_settings": NETWORK,
                "max_steps": 96,
                "summary_freq": 32,
            },
        },
    }
    trainer = start(document)
    messages: list[dict[str, Any]] = []
    helpers: set[int] = set()
    player: threading.Thread | None = None

    for message in reports(trainer):
        messages.append(message)
        if message["type"] == "listening" and player is None:
            player = threading.Thread(target=play, args=(message["endpoints"][0]["address"],), daemon=True)
            player.start()
        if message["type"] == "checkpoint_written":
            helpers = {process.pid for process in processes_of(tmp_path / "scratch" / "group-")}

    assert player is not None
    player.join(10)
    events = {message["name"]: message for message in messages if message["type"] == "event"}
    assert messages[-1]["outcome"] == "succeeded", messages[-1]
    assert "processes_not_used" not in events
    assert points_of(messages, "Losses/Policy Loss")
    assert points_of(messages, "Losses/Q1 Loss")
    assert len(helpers) == 1, "one process beside the trainer"
    assert not processes_of(tmp_path / "scratch" / "group-")


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_trainer_whose_helper_dies_says_so_instead_of_waiting(start: StartTrainer, tmp_path: Path) -> None:
    learning = {"hyperparameters": PPO, "network_settings": NETWORK, "summary_freq": 64}
    document = {
        "seed": 1,
        "torch_settings": {"device": "cpu", "processes": 2},
        "behaviors": {"Hider": learning, "Seeker": learning},
    }
    trainer = start(document)
    messages: list[dict[str, Any]] = []
    player: threading.Thread | None = None
    helpers: list[psutil.Process] = []

    for message in reports(trainer):
        messages.append(message)
        if message["type"] == "listening" and player is None:
            player = threading.Thread(target=play, args=(message["endpoints"][0]["address"],), daemon=True)
            player.start()
        if message["type"] == "metrics" and not helpers:
            helpers = processes_of(tmp_path / "scratch" / "group-")
            for helper in helpers:
                helper.kill()

    assert player is not None
    player.join(30)
    assert len(helpers) == 1
    assert messages[-1]["outcome"] == "lost"
    assert not processes_of(tmp_path / "scratch" / "group-")
