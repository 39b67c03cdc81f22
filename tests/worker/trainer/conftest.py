"""Trainer processes that end with their test."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.stack import environment

StartTrainer = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartTrainer]:
    """Start trainers from documents; they end with the test."""
    started: list[subprocess.Popen[str]] = []

    def run(document: dict[str, Any], **variables: str) -> "subprocess.Popen[str]":
        config = tmp_path / "config.yaml"
        config.write_text(yaml.safe_dump(document))
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "worker.trainer", str(config), "--scratch", str(tmp_path / "scratch")],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**environment(), **variables},
            )
        )
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def reports(trainer: "subprocess.Popen[str]") -> Iterator[dict[str, Any]]:
    """Yield what a trainer tells its superior, until it ends."""
    assert trainer.stdout is not None
    for line in trainer.stdout:
        yield json.loads(line)


def points_of(messages: list[dict[str, Any]], key: str) -> dict[int, float]:
    """Return the points of one metric by step."""
    metrics = [message for message in messages if message["type"] == "metrics"]
    return {point["step"]: point["value"] for message in metrics for point in message["points"] if point["key"] == key}
