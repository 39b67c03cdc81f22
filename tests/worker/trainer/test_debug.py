"""`debug: true` logs the trainer's every step; without it the log has state changes alone."""

import json
import re
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from ludus.simulator import connect
from ludus.trouble import SimulatorError
from tests.e2e.stack import environment
from tests.worker.trainer.test_clone import Echo

PPO = {"hyperparameters": {"batch_size": 32, "buffer_size": 64}, "max_steps": 256, "checkpoint_interval": 128}
SAC = {"trainer_type": "sac", "hyperparameters": {"batch_size": 16, "steps_per_update": 64}, "max_steps": 256}


def log_of(folder: Path, document: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Train `Echo` alone; return level, event and the rest of each line of the trainer's log."""
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(document))
    players: list[threading.Thread] = []

    def play(address: str) -> None:
        with suppress(SimulatorError):
            connect(Echo(), run="alone", server=address, patience_seconds=5.0)

    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            [sys.executable, "-m", "worker.trainer", str(config), "--scratch", str(folder / "scratch")],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment(),
        ) as trainer,
    ):
        assert trainer.stdout is not None
        for line in trainer.stdout:
            message = json.loads(line)
            if message["type"] == "listening" and not players:
                players.append(threading.Thread(target=play, args=(message["endpoints"][0]["address"],), daemon=True))
                players[0].start()
    assert trainer.returncode == 0
    players[0].join(10)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", (folder / "log").read_text())
    found = re.findall(r"^\S+ \[(\w+) *\] (\w+) +(.*process=trainer.*)$", plain, re.MULTILINE)
    return [(level, event, rest) for level, event, rest in found]


@pytest.mark.parametrize(("section", "metric"), [(PPO, "Losses/Policy Loss"), (SAC, "Losses/Q1 Loss")])
def test_every_step_of_the_trainer_is_logged(tmp_path: Path, section: dict[str, Any], metric: str) -> None:
    lines = log_of(tmp_path, {"seed": 1, "debug": True, "behaviors": {"Echo": section}})

    debug = [(event, rest) for level, event, rest in lines if level == "debug"]
    count = Counter(event for event, _ in debug)
    assert count["round_granted"] == count["round_gathered"] == count["update_made"] == 4
    assert count["policy_published"] == 5, "the first one, and one for each update"
    assert count["checkpoint_begun"] == count["checkpoint_written"] >= 1
    updates = [rest for event, rest in debug if event == "update_made"]
    assert [re.findall(r"\bstep=(\d+)", rest) for rest in updates] == [["64"], ["128"], ["192"], ["256"]]
    assert all(f"'{metric}': " in rest and "seconds=" in rest for rest in updates)
    notices = " ".join(rest for event, rest in debug if event == "notice_taken")
    for notice in ("SimulatorConnected", "BehaviorAnnounced", "SegmentsDelivered", "RoundCollected", "EpisodesEnded"):
        assert f"notice={notice} " in notices
    assert "lengths=[5" in notices, "columns that are short are logged as they are"


def test_without_debug_no_step_is_logged(tmp_path: Path) -> None:
    lines = log_of(tmp_path, {"seed": 1, "behaviors": {"Echo": PPO}})

    assert "behavior_admitted" in {event for _, event, _ in lines}
    assert "debug" not in {level for level, _, _ in lines}
