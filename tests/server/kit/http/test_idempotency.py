import threading
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import event

from server.kit.http.errors import IdempotencyKeyInvalid, RequestInFlight
from server.kit.http.idempotency import InFlight, fingerprint_of, read_key
from tests.server.app.world import CARTPOLE, World, open_world

BODY = {"config": CARTPOLE, "tags": ["once"]}


def post(http: httpx2.Client, key: str, body: object = BODY) -> httpx2.Response:
    return http.post("/v1/runs", json=body, headers={"Idempotency-Key": key})


def test_a_repeated_request_gets_the_first_answer_and_has_no_second_effect(world: World) -> None:
    first, second = post(world.http, "key-1"), post(world.http, '"key-1"')

    assert first.status_code == second.status_code == 201
    assert first.json() == second.json()
    assert first.headers["location"] == second.headers["location"]
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"


def test_a_key_used_for_other_content_is_refused(http: httpx2.Client) -> None:
    post(http, "key-2").raise_for_status()

    other_body = post(http, "key-2", {**BODY, "priority": 1})
    other_query = http.post("/v1/runs?name=x", json=BODY, headers={"Idempotency-Key": "key-2"})

    for answer in (other_body, other_query):
        assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_key_reused")


def test_a_key_belongs_to_one_path(world: World) -> None:
    first, second = world.create(), world.create()
    headers = {"Idempotency-Key": "key-3"}

    assert world.http.post(f"/v1/runs/{first['id']}:cancel", headers=headers).json()["id"] == first["id"]
    assert world.http.post(f"/v1/runs/{second['id']}:cancel", headers=headers).json()["id"] == second["id"]


def test_a_refused_request_does_not_use_up_its_key(world: World) -> None:
    assert post(world.http, "key-4", {"config": {"behaviors": {}}}).status_code == 422

    assert post(world.http, "key-4").status_code == 201


@pytest.mark.long
def test_many_at_once_with_one_key_have_one_effect(world: World) -> None:
    answers: list[httpx2.Response] = []

    def send() -> None:
        with httpx2.Client(base_url=world.server, timeout=30) as http:
            answers.append(post(http, "key-5"))

    threads = [threading.Thread(target=send) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    created = [answer for answer in answers if answer.status_code == 201]
    assert len({answer.json()["id"] for answer in created}) == 1
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert {answer.json()["code"] for answer in answers if answer.status_code == 409} <= {"request_in_flight"}


def test_a_key_is_in_flight_until_its_request_is_answered() -> None:
    in_flight = InFlight()

    with in_flight.hold("POST /v1/runs", "a"):
        with pytest.raises(RequestInFlight), in_flight.hold("POST /v1/runs", "a"):
            pass
        with in_flight.hold("POST /v1/configs", "a"):
            pass
    with in_flight.hold("POST /v1/runs", "a"):
        pass


@pytest.mark.parametrize("header", ["", '""', "a" * 256, "\t", "é"])
def test_a_key_is_printable_ascii(header: str) -> None:
    with pytest.raises(IdempotencyKeyInvalid):
        read_key(header)


def test_a_quoted_key_is_the_same_as_the_bare_one() -> None:
    assert read_key('"a\\"b"') == 'a"b'
    assert read_key("8e03978e-40d5") == read_key('"8e03978e-40d5"')
    assert read_key(None) is None


def test_parts_of_a_fingerprint_do_not_run_together() -> None:
    assert fingerprint_of(b"ab", b"c") != fingerprint_of(b"a", b"bc")


def test_a_commit_that_fails_is_a_5xx_and_leaves_no_run_and_no_key(tmp_path: Path) -> None:
    with open_world(tmp_path) as world:

        def fail(_connection: object) -> None:
            raise OSError("the disk is gone")

        engine = world.services.database.engine
        event.listen(engine, "commit", fail)
        broken = post(world.http, "key-6")
        event.remove(engine, "commit", fail)
        repeated = post(world.http, "key-6")

        assert (broken.status_code, broken.json()["code"]) == (500, "internal")
        assert repeated.status_code == 201
        assert "idempotency-replayed" not in repeated.headers
        assert [run["id"] for run in world.http.get("/v1/runs").json()["runs"]] == [repeated.json()["id"]]
        assert world.services.wake_up.woken == [repeated.json()["id"]]  # type: ignore[attr-defined]
