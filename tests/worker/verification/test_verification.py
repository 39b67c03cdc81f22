"""`python -m worker.verification`: what `ludus run verify-resume` runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from ludus.collector.messages import spec_to_text
from server.config.config import RunConfig
from tests.toys.wanderers import SPEC
from tests.worker.trainer.test_exact_resume import document, show, trainers
from tests.worker.verification.test_rows import World
from worker.trainer import checkpoint
from worker.trainer.checkpoint import TENSORS_FILE
from worker.verification.__main__ import main


def stored(folder: Path, name: str) -> tuple[Path, Path]:
    """Write a checkpoint of a trainer and its configuration; return both."""
    folder.mkdir(exist_ok=True)
    world = World(name, folder)
    target = folder / "checkpoint"
    target.mkdir()
    checkpoint.save(target, {"Wanderer": {**world.saved, "spec": spec_to_text(SPEC)}})
    config = folder / "config.json"
    config.write_text(world.job.config.model_dump_json())
    return target, config


def verify(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[dict[str, Any]], str]:
    """Return the exit code, the rows, and what went wrong."""
    code = main([str(argument) for argument in arguments])
    told = capsys.readouterr()
    return code, json.loads(told.out) if told.out else [], told.err


@pytest.mark.timeout(120)
def test_a_good_checkpoint_has_a_good_row_for_each_entry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, config = stored(tmp_path, "ppo-gail")

    code, rows, _ = verify(capsys, folder, config, "--seed", 5)

    assert code == 0
    assert {row["entry"] for row in rows} >= {
        "model",
        "optimizer",
        "generator",
        "signals/gail",
        "cloning",
        "collectors",
    }
    learnt = [row for row in rows if row["behavior"]]
    assert all(row["restored"] and row["exact"] and row["good"] for row in learnt)


@pytest.mark.timeout(120)
def test_what_a_checkpoint_lacks_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, config = stored(tmp_path, "sac")
    document = json.loads(config.read_text())
    document["behaviors"]["Wanderer"]["hyperparameters"]["save_replay_buffer"] = False
    config.write_text(json.dumps(document))

    code, rows, _ = verify(capsys, folder, config, "--seed", 5)

    assert code == 1
    by_entry = {row["entry"]: row for row in rows}
    assert not by_entry["replay"]["good"]
    assert by_entry["actor"]["exact"] is False, "it learns from other steps"


def test_a_damaged_checkpoint_cannot_be_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, config = stored(tmp_path, "ppo")
    (folder / TENSORS_FILE).write_bytes(b"x")

    code, rows, error = verify(capsys, folder, config)

    assert (code, rows) == (2, [])
    assert "is not what was written" in error


def test_one_of_an_older_release_cannot_be_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, config = stored(tmp_path, "ppo")
    state = checkpoint.load(folder)
    del state["Wanderer"]["spec"]
    older = tmp_path / "older"
    older.mkdir()
    checkpoint.save(older, state)

    code, _, error = verify(capsys, older, config)

    assert code == 2
    assert "an older release wrote it" in error


def test_another_configuration_is_refused_with_what_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, config = stored(tmp_path, "ppo")
    shown = show(tmp_path / "shown.npz")
    other = {**document({}), "behaviors": {"Wanderer": trainers(shown)["sac"]}}
    config.write_text(RunConfig.model_validate(other).model_dump_json())

    code, _, error = verify(capsys, folder, config)

    assert code == 2
    assert "does not fit behavior 'Wanderer' as it is configured" in error
