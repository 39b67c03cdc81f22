"""`debug: true` logs the trainer's every step; without it the log has state changes alone."""

import re
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from ludus.sdk import SimulatorError, connect
from tests.ports import free_port
from tests.worker.trainer.conftest import TrainAlone
from tests.worker.trainer.test_clone import Echo

LogOf = Callable[[dict[str, Any]], list[tuple[str, str, str]]]

PPO = {"hyperparameters": {"batch_size": 32, "buffer_size": 64}, "max_steps": 256, "checkpoint_interval": 128}
SAC = {"trainer_type": "sac", "hyperparameters": {"batch_size": 16, "steps_per_update": 64}, "max_steps": 256}


@pytest.fixture
def log_of(tmp_path: Path, capfd: pytest.CaptureFixture[str], alone: TrainAlone) -> LogOf:
    """Train `Echo` alone; return level, event and the rest of each line of the trainer's log."""

    def train(document: dict[str, Any]) -> list[tuple[str, str, str]]:
        config = tmp_path / "config.yaml"
        config.write_text(yaml.safe_dump(document))
        port = free_port()

        def play() -> None:
            with suppress(SimulatorError):
                connect(Echo(), run="alone", server=f"127.0.0.1:{port}", connect_timeout_seconds=60.0)

        player = threading.Thread(target=play, daemon=True)
        player.start()
        assert alone(str(config), "--scratch", str(tmp_path / "scratch"), "--port", str(port)) == 0
        player.join(60)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", capfd.readouterr().err)
        found = re.findall(r"^\S+ \[(\w+) *\] (\w+) +(.*process=trainer.*)$", plain, re.MULTILINE)
        return [(level, event, rest) for level, event, rest in found]

    return train


@pytest.mark.parametrize(
    ("section", "metric"), [(PPO, "Losses/Policy Loss"), pytest.param(SAC, "Losses/Q1 Loss", marks=pytest.mark.long)]
)
def test_every_step_of_the_trainer_is_logged(log_of: LogOf, section: dict[str, Any], metric: str) -> None:
    lines = log_of({"seed": 1, "debug": True, "behaviors": {"Echo": section}})

    debug = [(event, rest) for level, event, rest in lines if level == "debug"]
    count = Counter(event for event, _ in debug)
    assert count["round_granted"] == count["round_gathered"] == count["update_made"] == 4
    assert count["policy_published"] == 5, "the first one, and one for each update"
    assert count["checkpoint_begun"] == count["checkpoint_written"] >= 1
    updates = [rest for event, rest in debug if event == "update_made"]
    assert [re.findall(r"\bstep=(\d+)", rest) for rest in updates] == [["64"], ["128"], ["192"], ["256"]]
    assert all(f"'{metric}': " in rest and "seconds=" in rest for rest in updates)
    events = " ".join(rest for event, rest in debug if event == "collector_event")
    for kind in ("SimulatorConnected", "BehaviorAnnounced", "SegmentsDelivered", "RoundCollected", "EpisodesEnded"):
        assert f"kind={kind} " in events
    assert " length=[5" in events, "columns that are short are logged as they are"


def test_without_debug_no_step_is_logged(log_of: LogOf) -> None:
    lines = log_of({"seed": 1, "behaviors": {"Echo": PPO}})

    assert "behavior_admitted" in {event for _, event, _ in lines}
    assert "debug" not in {level for level, _, _ in lines}
