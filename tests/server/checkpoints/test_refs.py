"""How good a checkpoint is, and what is wrong with its files."""

from pathlib import Path

import pytest

from ludus.config.run import KeepBest
from ludus.schemas import ScoredBy
from server.checkpoints.refs import CheckpointRef, damage, overall_score
from server.kit.artifacts.folder import FolderStore

SCORES = {"Striker": {"Elo": 1300.0}, "Goalie": {"Elo": 1100.0}, "": {"loss": 0.5}}


@pytest.mark.parametrize(
    ("rule", "score"),
    [
        (KeepBest(metric="Elo"), (1300.0 + 1100.0) / 2),
        (KeepBest(metric="Elo", behavior="Goalie"), 1100.0),
        (KeepBest(metric="loss", mode="min"), -0.5),
        (KeepBest(metric="win_rate"), None),
    ],
    ids=["of all behaviors that have it", "of one", "less is better", "not measured yet"],
)
def test_the_score_is_the_metric_of_the_rule(rule: KeepBest, score: float | None) -> None:
    measured = None if score is None else ScoredBy(kind="metric", metric=rule.metric)

    assert overall_score(rule, SCORES, [1.0], []) == (score, measured)


def test_without_a_rule_the_score_is_the_mean_return_of_what_was_measured() -> None:
    first = ScoredBy(kind="evaluation", episodes=10, from_step=500)
    second = ScoredBy(kind="episodes", episodes=30, from_step=400)

    assert overall_score(None, SCORES, [1.0, None, 4.0], [first, second]) == (
        (1.0 + 4.0) / 2,
        ScoredBy(kind="episodes", episodes=10 + 30, from_step=400),
    )
    assert overall_score(None, SCORES, [None], []) == (None, None)


def test_each_damaged_file_is_named_with_what_is_wrong(tmp_path: Path) -> None:
    store, source = FolderStore(tmp_path / "store"), tmp_path / "source"
    source.mkdir()
    for name in ("changed", "longer", "missing", "whole"):
        (source / name).write_bytes(b"content")
    files = tuple(store.publish(source, "runs/a/1/c"))
    stored = tmp_path / "store/runs/a/1/c"
    (stored / "changed").write_bytes(b"CONTENT")
    (stored / "longer").write_bytes(b"contents")
    (stored / "missing").unlink()

    changed, longer, missing = damage(store, CheckpointRef("ckpt_a", 1, 0, {}, "runs/a/1/c", files))

    assert changed.startswith("changed has the SHA-256 ")
    assert (longer, missing) == ("longer has 8 bytes, not 7", "missing is missing")
