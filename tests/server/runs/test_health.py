"""The findings of a trainer: stored, told as events, and answered over HTTP."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from ludus.client import Client
from ludus.schemas import Finding
from ludus.schemas.states import RunState
from server.kit.errors import LeaseLost
from tests.server.app.world import Trainer, World

ZERO = Finding(
    code="returns_constant",
    behavior="CartPole",
    message="All 654 episodes had a return of exactly 0.",
    remedy="Let the game give a reward.",
    figures={"episodes": 654, "return": 0.0},
    since_step=1000,
    since=datetime(2026, 11, 27, 9, tzinfo=UTC),
)
ENDLESS = replace(ZERO, code="no_episode_ended", message="No episode has ended.", figures={"summaries": 10})


@pytest.fixture
def trainer(world: World) -> Trainer:
    return world.claim(world.create()["id"]).start()


def events(world: World, run: str) -> list[tuple[str, str]]:
    answer = world.http.get(f"/v1/runs/{run}/events", params={"page_size": 1000}).json()["events"]
    return [(event["type"], event["data"].get("code")) for event in answer if event["type"].startswith("finding_")]


def health(world: World, run: str) -> list[dict[str, Any]]:
    answer = world.http.get(f"/v1/runs/{run}/health")
    assert answer.status_code == 200
    return list(answer.json()["findings"])


def test_a_run_without_findings_answers_an_empty_list(world: World) -> None:
    run = world.create()

    assert (health(world, run["id"]), run["findings"]) == ([], [])


def test_findings_are_answered_whole_and_their_codes_stand_with_the_run(world: World, trainer: Trainer) -> None:
    trainer.ledger.health.publish([ZERO, ENDLESS])

    first, second = health(world, trainer.run_id)
    assert first == {
        "code": "returns_constant",
        "behavior": "CartPole",
        "message": "All 654 episodes had a return of exactly 0.",
        "remedy": "Let the game give a reward.",
        "figures": {"episodes": 654, "return": 0.0},
        "since_step": 1000,
        "since": "2026-11-27T09:00:00Z",
    }
    assert second["code"] == "no_episode_ended"
    listed = {run["id"]: run for run in world.http.get("/v1/runs").json()["runs"]}[trainer.run_id]
    assert listed["findings"] == ["returns_constant", "no_episode_ended"]


def test_each_finding_is_told_once_when_it_begins_and_once_when_it_is_over(world: World, trainer: Trainer) -> None:
    trainer.ledger.health.publish([ZERO])
    trainer.ledger.health.publish([replace(ZERO, figures={"episodes": 700}), ENDLESS])
    trainer.ledger.health.publish([replace(ZERO, figures={"episodes": 900})])
    trainer.ledger.health.publish([])

    assert events(world, trainer.run_id) == [
        ("finding_raised", "returns_constant"),
        ("finding_raised", "no_episode_ended"),
        ("finding_resolved", "no_episode_ended"),
        ("finding_resolved", "returns_constant"),
    ]
    assert health(world, trainer.run_id) == []


def test_a_finding_keeps_its_newest_numbers(world: World, trainer: Trainer) -> None:
    trainer.ledger.health.publish([ZERO])
    trainer.ledger.health.publish([replace(ZERO, figures={"episodes": 700})])

    assert [finding["figures"] for finding in health(world, trainer.run_id)] == [{"episodes": 700}]


def test_a_finding_of_an_attempt_before_keeps_its_time(world: World, trainer: Trainer) -> None:
    trainer.ledger.health.publish([ZERO])
    trainer.ledger.health.publish([replace(ZERO, since=datetime(2026, 11, 28, tzinfo=UTC))])

    assert [finding["since"] for finding in health(world, trainer.run_id)] == ["2026-11-27T09:00:00Z"]


def test_one_code_of_two_behaviors_is_two_findings(world: World, trainer: Trainer) -> None:
    trainer.ledger.health.publish([ZERO, replace(ZERO, behavior="Pendulum")])

    assert [finding["behavior"] for finding in health(world, trainer.run_id)] == ["CartPole", "Pendulum"]
    assert world.http.get(f"/v1/runs/{trainer.run_id}").json()["findings"] == ["returns_constant"]


def test_the_findings_of_the_end_stay(world: World, trainer: Trainer) -> None:
    trainer.ledger.health.publish([ZERO])
    trainer.finish()

    with Client(world.server) as client:
        record = client.runs.get(trainer.run_id)
        findings = client.runs.health(trainer.run_id).findings
    assert (record.state, record.findings) == (RunState.SUCCEEDED, ("returns_constant",))
    assert findings == (ZERO,)


def test_an_attempt_that_has_lost_the_run_changes_no_finding(world: World, trainer: Trainer) -> None:
    trainer.ledger.health.publish([ZERO])
    trainer.finish()

    with pytest.raises(LeaseLost):
        trainer.ledger.health.publish([])

    assert [finding["code"] for finding in health(world, trainer.run_id)] == ["returns_constant"]


def test_texts_that_a_database_cannot_store_are_stored_readably(world: World, trainer: Trainer) -> None:
    trainer.ledger.health.publish([replace(ZERO, message="Sensor '\x00' is constant.")])

    assert health(world, trainer.run_id)[0]["message"] == "Sensor '\ufffd' is constant."
