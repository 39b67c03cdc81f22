"""Pinning, scoring, verifying and pruning over HTTP."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ludus.client import Client, NotFound
from ludus.schemas import ScoredBy
from server.metrics.points import MetricPoint
from server.runs.events.repository import EventRepository
from tests.server.app.world import CARTPOLE, Trainer, World, open_world

KEEP_BEST = {**CARTPOLE, "checkpoint_settings": {"keep_best": {"metric": "Elo", "mode": "max"}}}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Return a server of this test's own: pruning looks at every run."""
    with open_world(tmp_path / "home") as world:
        yield world


@pytest.fixture
def client(world: World) -> Any:
    with Client(world.server) as client:
        yield client


def begin(world: World, config: Any = CARTPOLE) -> Trainer:
    return world.claim(world.create(config)["id"]).start()


def stored(world: World, trainer: Trainer, step: int, name: str) -> Path:
    return world.services.settings.storage.root / f"runs/{trainer.run_id}/1/checkpoints/{step}/{name}"


def test_a_pinned_checkpoint_stays_until_it_is_unpinned(world: World, client: Client, tmp_path: Path) -> None:
    trainer = begin(world)
    ids = [trainer.save(step, {"a.onnx": b"a"}, tmp_path) for step in (100, 200, 300)]

    pinned = client.checkpoints.pin(trainer.run_id, ids[0])
    again = client.checkpoints.pin(trainer.run_id, ids[0])

    assert pinned.pinned_at is not None
    assert again.pinned_at == pinned.pinned_at
    assert trainer.ledger.checkpoints.retire(1) == [ids[1]]
    assert client.checkpoints.unpin(trainer.run_id, ids[0]).pinned_at is None
    assert trainer.ledger.checkpoints.retire(1) == [ids[0]]
    gone = world.http.post(f"/v1/runs/{trainer.run_id}/checkpoints/{ids[0]}:pin")
    assert (gone.status_code, gone.json()["code"]) == (410, "checkpoint_deleted")
    with pytest.raises(NotFound):
        client.checkpoints.pin(trainer.run_id, "ckpt_other")


def test_the_best_goes_by_the_metric_of_its_moment_or_by_what_an_evaluation_says(
    world: World, client: Client, tmp_path: Path
) -> None:
    trainer = begin(world, KEEP_BEST)
    with pytest.raises(NotFound, match=r"has a score yet: the value of `keep_best.metric`"):
        client.checkpoints.get(trainer.run_id, "best")
    with pytest.raises(NotFound, match="saved none so far"):
        client.checkpoints.get(trainer.run_id, "latest")
    ids = []
    for step, elo in ((100, 1200.0), (200, 1300.0), (300, 1250.0)):
        trainer.ledger.metrics.append([MetricPoint("CartPole", "Elo", step, 1000.0 + step, elo)])
        ids.append(trainer.save(step, {"a.onnx": b"a"}, tmp_path))

    best = client.checkpoints.get(trainer.run_id, "best")
    assert (best.id, best.score, best.scores["CartPole"]["Elo"]) == (ids[1], 1300.0, 1300.0)
    scored = client.checkpoints.score(trainer.run_id, ids[0], "Elo", 1400.0, behavior="CartPole")
    assert (scored.score, scored.scored_by) == (1400.0, ScoredBy(kind="metric", metric="Elo"))
    assert client.checkpoints.get(trainer.run_id, "best").id == ids[0]
    assert trainer.ledger.checkpoints.retire(1) == [ids[1]]
    assert client.checkpoints.get(trainer.run_id, "latest").id == ids[2]


def test_without_a_rule_the_best_has_the_highest_mean_return(world: World, client: Client, tmp_path: Path) -> None:
    trainer = begin(world)
    trainer.save(100, {"a.onnx": b"a"}, tmp_path, score=80.0)
    trainer.save(200, {"a.onnx": b"a"}, tmp_path, score=12.5)

    best = client.checkpoints.get(trainer.run_id, "best")

    assert (best.step, best.score) == (100, 80.0)
    assert best.scored_by == ScoredBy(kind="episodes", episodes=20, from_step=0)
    evaluated = client.checkpoints.score(trainer.run_id, best.id, "win_rate", 0.5)
    assert evaluated.scored_by == best.scored_by, "the score that no rule names is not the score"


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (lambda file: file.write_bytes(b"B" + file.read_bytes()[1:]), "b.onnx has the SHA-256"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "b.onnx has 6 bytes, not 7"),
        (lambda file: file.unlink(), "b.onnx is missing"),
    ],
    ids=["a byte flipped", "truncated", "deleted"],
)
def test_a_damaged_checkpoint_is_named_and_not_resumed_from(
    world: World, client: Client, tmp_path: Path, harm: Any, sentence: str
) -> None:
    trainer = begin(world)
    good = trainer.save(100, {"a.onnx": b"a", "b.onnx": b"b-model"}, tmp_path)
    bad = trainer.save(200, {"a.onnx": b"a", "b.onnx": b"b-model"}, tmp_path)
    assert client.checkpoints.verify(trainer.run_id).sound
    file = stored(world, trainer, 200, "b.onnx")
    whole = file.read_bytes()
    harm(file)

    looked = client.checkpoints.verify(trainer.run_id, bad)

    assert not looked.sound
    assert looked.problems[0].startswith(sentence)
    assert looked.checkpoint.damaged_at is not None
    assert client.checkpoints.get(trainer.run_id, "latest").id == good
    with world.services.database.read() as session:
        told = EventRepository(session).page(trainer.run_id)[-1]
    assert (told.type, told.level, told.data["checkpoint_id"]) == ("checkpoint_damaged", "error", bad)
    assert "b.onnx" in told.message
    file.write_bytes(whole)
    assert client.checkpoints.verify(trainer.run_id, bad).checkpoint.damaged_at is None
    assert client.checkpoints.get(trainer.run_id, "latest").id == bad


def test_a_run_cannot_begin_with_a_damaged_checkpoint(world: World, client: Client, tmp_path: Path) -> None:
    trainer = begin(world)
    bad = trainer.save(100, {"a.onnx": b"a"}, tmp_path)
    stored(world, trainer, 100, "a.onnx").unlink()
    client.checkpoints.verify(trainer.run_id, bad)

    refused = world.http.post(
        "/v1/runs", json={"config": {"behaviors": {"CartPole": {"initialize_from": bad}}}, "name": "next"}
    )

    assert refused.status_code == 422
    assert "is damaged (a.onnx is missing)" in refused.json()["errors"][0]["message"]


def test_pruning_says_what_it_would_delete_and_then_deletes_it(world: World, client: Client, tmp_path: Path) -> None:
    trainer = begin(world)
    ids = [trainer.save(step, {"a.onnx": b"12345"}, tmp_path) for step in (100, 200, 300)]

    planned = client.checkpoints.prune(max_bytes=7, dry_run=True)
    nothing = client.checkpoints.prune(older_than_seconds=3600)

    assert [(each.id, each.rule) for each in planned.checkpoints] == [(ids[0], "size"), (ids[1], "size")]
    assert (planned.dry_run, planned.bytes, nothing.checkpoints) == (True, 10, ())
    assert len(client.checkpoints.list(trainer.run_id)) == 3
    done = client.checkpoints.prune(max_bytes=7)
    assert [each.id for each in done.checkpoints] == ids[:2]
    assert [each.id for each in client.checkpoints.list(trainer.run_id)] == ids[2:]


@pytest.mark.parametrize("body", [{"max_bytes": -1}, {"older_than_seconds": 0}, {"keep": 3}])
def test_a_rule_that_makes_no_sense_is_refused(world: World, body: dict[str, Any]) -> None:
    assert world.http.post("/v1/checkpoints:prune", json=body).status_code == 422
