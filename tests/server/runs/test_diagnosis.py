"""What holds a run back, over HTTP."""

import time
from dataclasses import replace
from typing import Any

from ludus.schemas.states import RunState
from server.runs.diagnosis import TimeSpent
from tests.server.app.world import World

SPENT = TimeSpent(
    at=time.time(),
    seconds=30.0,
    steps=3_000,
    learning=0.1,
    checkpointing=0.0,
    collectors=1,
    simulators=4,
    busy=0.08,
    collecting=0.05,
    waiting_for_learner=0.1,
    waiting_for_stragglers=0.05,
    waiting_for_checkpoint=0.0,
    waiting_for_network=0.0,
    away=0.8,
    game=0.75,
    game_seconds=0.02,
    way_seconds=0.001,
    latest_simulator=3,
    latest_simulator_share=0.9,
)


def bottleneck(world: World, run: str) -> dict[str, Any]:
    response = world.http.get(f"/v1/runs/{run}/bottleneck")
    assert response.status_code == 200
    return dict(response.json())


def test_the_newest_measurements_of_a_running_run_become_a_sentence_with_figures(world: World) -> None:
    trainer = world.claim(world.create()["id"]).start()
    trainer.ledger.heartbeat(60, 100, replace(SPENT, game=0.1, away=0.1))
    trainer.ledger.heartbeat(60, 3_100, SPENT)
    trainer.ledger.heartbeat(60, 3_100)  # the trainer has said nothing new

    found = bottleneck(world, trainer.run_id)

    assert found["cause"] == "games"
    assert found["message"].startswith("The games take 75% of the simulators' time, 20.0 ms for a step; collectors are")
    assert found["message"].endswith("collectors are idle 95% of the time, the learner 90%")
    assert (found["learner_idle"], found["collectors_idle"]) == (0.9, 0.95)
    assert (found["share"], found["steps_per_second"], found["steps_per_second_without"]) == (0.75, 100.0, 400.0)
    assert found["simulator"] is None
    assert sum(found["shares"].values()) <= 1.0


def test_both_idle_shares_are_told_whatever_the_cause_and_work_on_checkpoints_is_no_waiting(world: World) -> None:
    trainer = world.claim(world.create()["id"]).start()
    spent = replace(SPENT, learning=0.6, checkpointing=0.1, waiting_for_learner=0.6, away=0.3, game=0.3)
    trainer.ledger.heartbeat(60, 100, spent)

    found = bottleneck(world, trainer.run_id)

    assert found["cause"] == "learner"
    assert found["message"].endswith("; collectors are idle 95% of the time, the learner 30%")
    assert (found["learner_idle"], found["collectors_idle"]) == (0.3, 0.95)


def test_waits_of_one_collector_for_the_round_of_another_one_are_not_the_learners(world: World) -> None:
    trainer = world.claim(world.create()["id"]).start()
    waits = replace(SPENT, collectors=2, waiting_for_learner=0.7, away=0.2, game=0.2)
    trainer.ledger.heartbeat(60, 1, waits)

    found = bottleneck(world, trainer.run_id)

    assert (found["cause"], found["simulator"]) == ("stragglers", 3)
    assert "90% of that for simulator 3" in found["message"]


def test_an_edge_collectors_slow_link_is_the_network(world: World) -> None:
    trainer = world.claim(world.create()["id"]).start()
    trainer.ledger.heartbeat(60, 1, replace(SPENT, waiting_for_network=0.6, away=0.2, game=0.2))

    found = bottleneck(world, trainer.run_id)

    assert found["cause"] == "network"
    assert found["message"].startswith("The network of an edge collector is slower than its games")


def test_a_run_without_simulators_has_too_few(world: World) -> None:
    trainer = world.claim(world.create()["id"]).start()
    trainer.ledger.heartbeat(60, 1, replace(SPENT, simulators=0, steps=0))

    found = bottleneck(world, trainer.run_id)

    assert (found["cause"], found["message"]) == ("too_few_simulators", "No simulator plays")


def test_a_run_that_is_not_measured_says_why(world: World) -> None:
    waiting = world.create()["id"]
    trainer = world.claim(waiting).start()
    fresh = bottleneck(world, waiting)
    trainer.ledger.heartbeat(60, 1, SPENT)
    trainer.ledger.move(RunState.SUCCEEDED)

    assert fresh["cause"] is None
    assert "nothing is measured yet" in fresh["message"].lower()
    assert bottleneck(world, waiting)["message"] == "The run is SUCCEEDED: nothing is measured"
    assert world.http.get("/v1/runs/none/bottleneck").json()["code"] == "run_not_found"
