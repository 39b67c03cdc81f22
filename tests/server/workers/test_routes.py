"""Cordon, drain and uncordon over HTTP: slots and hosts by name, for runs of all projects, in the audit log."""

import httpx2

from server.kit.states import Intent
from server.workers.repository import WorkerInfo, WorkerRegistry
from tests.server.app.world import World


def register(world: World, *worker_ids: str) -> None:
    for worker_id in worker_ids:
        info = WorkerInfo(worker_id, worker_id.partition("/")[0], 1, "0.1.0")
        WorkerRegistry(world.services.database).register(info)


def shown(answer: httpx2.Response) -> list[tuple[str, bool, bool]]:
    assert answer.status_code == 200, answer.text
    return [(each["id"], each["cordoned"], each["draining"]) for each in answer.json()["workers"]]


def test_a_slot_is_named_by_its_id_with_or_without_encoded_slashes_and_a_host_by_its_name(world: World) -> None:
    register(world, "rack-1/7/1", "rack-1/8/1")

    assert shown(world.http.post("/v1/workers/rack-1/7/1:cordon")) == [("rack-1/7/1", True, False)]
    assert shown(world.http.post("/v1/workers/rack-1%2F7%2F1:uncordon")) == [("rack-1/7/1", False, False)]
    both = shown(world.http.post("/v1/workers/rack-1:drain"))
    assert both == [("rack-1/7/1", True, True), ("rack-1/8/1", True, True)]
    assert shown(world.http.get("/v1/workers", params={"filter": 'id = "rack-1/8/1"'})) == [("rack-1/8/1", True, True)]
    refused = world.http.post("/v1/workers/rack-1/7/1:uncordon")
    assert (refused.status_code, refused.json()["code"]) == (409, "host_cordoned")
    unknown = world.http.post("/v1/workers/rack-9:drain")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "worker_not_found")


def test_a_drain_concerns_runs_of_all_projects_and_is_audited(world: World) -> None:
    register(world, "host/1/1")
    run = world.http.post(
        "/v1/runs", json={"config": {"behaviors": {"CartPole": {}}}}, headers={"Ludus-Project": "elsewhere"}
    ).json()
    trainer = world.claim(run["id"]).start()

    answer = world.http.post("/v1/workers/host:drain")

    assert [each["run_id"] for each in answer.json()["workers"] if each["id"] == "host/1/1"] == [run["id"]]
    assert trainer.ledger.heartbeat(60, 0).intent is Intent.RELEASE
    audit = world.http.get("/v1/audit", params={"filter": "status = 200"}).json()["entries"]
    assert ("/v1/workers/{worker:worker}:drain", "/v1/workers/host:drain") in [
        (each["route"], each["target"]) for each in audit
    ]
    world.http.post("/v1/workers/host:uncordon")  # the other tests' workers are of this host


def test_the_queue_has_the_runs_of_all_projects_by_demand_and_a_number_for_an_autoscaler(world: World) -> None:
    for project in ("north", "south"):
        config = {"behaviors": {"CartPole": {}}, "resources": {"gpu": 3, "labels": ["queue-test"]}}
        world.http.post("/v1/runs", json={"config": config}, headers={"Ludus-Project": project})

    narrowed = world.http.get("/v1/queue", params={"demand": "3;queue-test"}).json()
    whole = world.http.get("/v1/queue").json()

    assert (narrowed["runs"], narrowed["startable_runs"], narrowed["missing_slots"]) == (2, 2, 2)
    (one,) = narrowed["demands"]
    assert (one["demand"], one["gpus"], one["labels"], one["pool"]) == ("3;queue-test", 3, ["queue-test"], None)
    assert one["slots"] == {"idle": 0, "busy": 0, "cordoned": 0}
    assert one["explanation"]
    assert one["demand"] in [each["demand"] for each in whole["demands"]]
    assert world.http.get("/v1/queue", params={"demand": "60"}).json()["runs"] == 0


def test_an_unknown_pool_and_what_is_no_demand_get_a_sentence(world: World) -> None:
    pool = world.http.get("/v1/queue", params={"pool": "gpus"})
    demand = world.http.get("/v1/queue", params={"demand": "one GPU"})

    assert (pool.status_code, pool.json()["code"]) == (404, "pool_not_found")
    assert "none is declared (LUDUS_SCHEDULING__POOLS)" in pool.json()["detail"]
    assert (demand.status_code, demand.json()["code"]) == (422, "invalid_query")
    assert "as in 0, 1 or 1;a100,linux" in demand.json()["detail"]
