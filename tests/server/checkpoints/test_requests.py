"""A checkpoint now, over HTTP: asked for, answered once, with an id or the reason."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from ludus.schemas.states import RunState, StopReason
from server.kit.principal import ANONYMOUS
from tests.factories import make_checkpoint
from tests.server.app.world import Trainer, World


@pytest.fixture
def trainer(world: World) -> Iterator[Trainer]:
    trainer = world.claim(world.create()["id"]).start()
    yield trainer
    world.http.post(f"/v1/runs/{trainer.run_id}:cancel")
    if world.http.get(f"/v1/runs/{trainer.run_id}").json()["state"] == "RUNNING":
        trainer.finish(RunState.CANCELLED)


def ask(world: World, run: str, **headers: str) -> httpx2.Response:
    return world.http.post(f"/v1/runs/{run}:checkpoint", headers=headers)


def look(world: World, answer: httpx2.Response) -> dict[str, Any]:
    return dict(world.http.get(answer.headers["Location"]).json())


def test_a_request_is_answered_with_the_checkpoints_id(world: World, trainer: Trainer) -> None:
    answer = ask(world, trainer.run_id)
    assert (answer.status_code, answer.json()["checkpoint_id"]) == (202, None)
    assert trainer.ledger.checkpoints.requested() == 1

    saved = trainer.ledger.checkpoints.add(make_checkpoint(700, reason="requested", path="now"), 1)

    assert look(world, answer)["checkpoint_id"] == saved
    assert trainer.ledger.checkpoints.requested() is None
    events = world.http.get(f"/v1/runs/{trainer.run_id}/events").json()["events"]
    asked, written = [event for event in events if event["type"].startswith("checkpoint_")]
    assert (asked["type"], asked["data"]) == ("checkpoint_requested", {"request": 1, "by": ANONYMOUS})
    assert (written["data"]["checkpoint_id"], written["data"]["request"]) == (saved, 1)


def test_while_one_is_pending_asking_again_is_the_same_request(world: World, trainer: Trainer) -> None:
    first, second = ask(world, trainer.run_id), ask(world, trainer.run_id)
    assert first.json() == second.json()

    trainer.ledger.checkpoints.add(make_checkpoint(700, path="first"), 1)

    assert ask(world, trainer.run_id).json()["seq"] == 2


def test_a_repeated_request_gets_its_answer_again(world: World, trainer: Trainer) -> None:
    first = ask(world, trainer.run_id, **{"Idempotency-Key": "now"})
    trainer.ledger.checkpoints.add(make_checkpoint(700, path="once"), 1)

    second = ask(world, trainer.run_id, **{"Idempotency-Key": "now"})

    assert second.json() == first.json()
    assert trainer.ledger.checkpoints.requested() is None


def test_a_request_that_cannot_be_met_says_why(world: World, trainer: Trainer) -> None:
    answer = ask(world, trainer.run_id)

    trainer.ledger.checkpoints.decline(1, "no space is left")

    assert look(world, answer)["problem"] == "no space is left"
    assert look(world, answer)["checkpoint_id"] is None


def test_a_request_outlives_the_worker(world: World, trainer: Trainer) -> None:
    answer = ask(world, trainer.run_id)
    trainer.ledger.release("trainer_lost", "Gone.")

    successor = world.claim(trainer.run_id).start()
    saved = successor.ledger.checkpoints.add(
        make_checkpoint(900, path="later"), successor.ledger.checkpoints.requested()
    )

    assert look(world, answer)["checkpoint_id"] == saved
    successor.finish()


def test_a_run_that_pauses_answers_with_the_checkpoint_that_it_pauses_with(world: World, trainer: Trainer) -> None:
    answer = ask(world, trainer.run_id)
    saved = trainer.ledger.checkpoints.add(make_checkpoint(700, path="pause"))
    trainer.ledger.move(RunState.PAUSING, reason=StopReason.USER)

    trainer.ledger.move(RunState.PAUSED, reason=StopReason.USER)

    assert look(world, answer)["checkpoint_id"] == saved


def test_a_run_that_is_cancelled_answers_that_there_is_none(world: World, trainer: Trainer) -> None:
    answer = ask(world, trainer.run_id)

    trainer.finish(RunState.CANCELLED)

    assert "CANCELLED" in look(world, answer)["problem"]


def test_a_run_that_is_paused_after_its_worker_is_gone_answers_too(world: World, trainer: Trainer) -> None:
    answer = ask(world, trainer.run_id)
    trainer.ledger.release("trainer_lost", "Gone.")

    assert world.http.post(f"/v1/runs/{trainer.run_id}:pause").json()["state"] == "PAUSED"

    assert "PAUSED" in look(world, answer)["problem"]


def test_only_a_running_run_is_asked(world: World) -> None:
    run = world.create()["id"]

    answer = ask(world, run)

    assert (answer.status_code, answer.json()["code"]) == (409, "run_not_running")
    assert "is QUEUED" in answer.json()["detail"]
    assert "only a RUNNING run can write a checkpoint" in answer.json()["detail"]
    world.http.post(f"/v1/runs/{run}:cancel")


def test_unknown_requests_and_runs_are_not_found(world: World, trainer: Trainer) -> None:
    missing = world.http.get(f"/v1/runs/{trainer.run_id}/checkpoint_requests/7")

    assert (missing.status_code, missing.json()["code"]) == (404, "checkpoint_request_not_found")
    assert ask(world, "nobody").json()["code"] == "run_not_found"
