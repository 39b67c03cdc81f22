"""Webhooks over HTTP."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from server.webhooks.sender import Sender
from tests.factories import make_run
from tests.server.app.world import World, build_services, open_world, serving
from tests.server.webhooks.receiver import Receiver


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("webhooks"), webhooks={"private_addresses": True}) as world:
        yield world


def make(http: httpx2.Client, url: str = "http://127.0.0.1:9/hook", **fields: Any) -> dict[str, Any]:
    answer = http.post("/v1/webhooks", json={"url": url, **fields})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def send_all(world: World) -> None:
    """Do the controller's part once."""
    sender = Sender(world.services.database, world.services.settings.webhooks)
    sender.create_deliveries()
    sender.send()
    sender.close(60)


def test_a_webhook_is_made_listed_read_changed_and_deleted(http: httpx2.Client, world: World) -> None:
    run = make_run(world.services.database, name="watched")
    answer = http.post("/v1/webhooks", json={"url": "http://127.0.0.1:9/a", "events": ["run_*"], "run": "watched"})
    made = answer.json()
    path = answer.headers["location"]

    changed = http.patch(path, json={"events": ["*"], "run": None, "tag": "ci", "enabled": False, "description": "x"})
    listed = http.get("/v1/webhooks", params={"filter": "tag = ci AND enabled = false"}).json()["webhooks"]

    assert (answer.status_code, path) == (201, f"/v1/webhooks/{made['id']}")
    assert (made["events"], made["run_id"], made["enabled"]) == (["run_*"], run.id, True)
    assert listed == [changed.json()] == [http.get(path).json()]
    now = changed.json()
    assert (now["events"], now["run_id"], now["tag"], now["disabled_reason"]) == (["*"], None, "ci", "user")
    assert http.delete(path).status_code == 204
    assert http.get(path).json()["code"] == "webhook_not_found"


def test_the_secret_is_shown_once(http: httpx2.Client) -> None:
    made = make(http)
    path = f"/v1/webhooks/{made['id']}"

    later = [http.get(path), http.get("/v1/webhooks"), http.patch(path, json={"description": "x"})]

    assert made["secret"].startswith("whsec_")
    assert all("secret" not in answer.text.replace("last_secret", "") for answer in later)


def test_a_repeated_request_makes_one_webhook_and_shows_its_secret_again(http: httpx2.Client) -> None:
    body, key = {"url": "http://127.0.0.1:9/twice"}, {"Idempotency-Key": "make-it-once"}

    first, second = (http.post("/v1/webhooks", json=body, headers=key) for _ in range(2))

    assert first.json() == second.json()
    assert len(http.get("/v1/webhooks", params={"filter": 'url = "http://127.0.0.1:9/twice"'}).json()["webhooks"]) == 1


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "invalid_request"),
        ({"url": "https://example.com", "events": []}, "invalid_request"),
        ({"url": "https://example.com", "events": ["run created"]}, "invalid_request"),
        ({"url": "https://example.com", "event": "*"}, "invalid_request"),
        ({"url": "ftp://example.com"}, "invalid_webhook_url"),
        ({"url": "https://example.com", "run": "nobody"}, "run_not_found"),
    ],
)
def test_mistakes_are_answered_with_what_to_do(http: httpx2.Client, body: dict[str, Any], code: str) -> None:
    answer = http.post("/v1/webhooks", json=body)

    assert answer.status_code in {404, 422}
    assert answer.json()["code"] == code


def test_a_change_of_nothing_is_refused(http: httpx2.Client) -> None:
    assert http.patch(f"/v1/webhooks/{make(http)['id']}", json={}).json()["code"] == "invalid_request"


def test_the_own_network_is_refused_where_the_operator_does_not_allow_it(world: World) -> None:
    services = build_services(world.services.settings.home / "guarded")
    with serving(services) as server:
        refused = httpx2.post(f"{server}/v1/webhooks", json={"url": "https://169.254.169.254/latest"})

    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_webhook_url")
    assert "LUDUS_WEBHOOKS__PRIVATE_ADDRESSES" in refused.json()["detail"]


def test_a_test_says_what_the_receiver_said(http: httpx2.Client, receiver: Receiver) -> None:
    made = make(http, receiver.url)
    path = f"/v1/webhooks/{made['id']}"
    http.patch(path, json={"enabled": False})

    good = http.post(f"{path}:test").json()
    receiver.status, receiver.body = 500, b"no"
    bad = http.post(f"{path}:test").json()

    assert (good["type"], good["state"], good["log"][0]["status"]) == ("webhook_test", "succeeded", 200)
    assert good["log"][0]["response"] == "thank you"
    assert (bad["state"], bad["next_try_at"]) == ("failed", None)  # a test is not tried again
    assert (bad["log"][0]["error"], bad["log"][0]["response"]) == ("the receiver answered 500", "no")
    assert receiver.received[0].verified(made["secret"])["type"] == "webhook_test"
    assert receiver.ids() == [good["id"], bad["id"]]


def test_a_repeated_test_call_sends_once(http: httpx2.Client, receiver: Receiver) -> None:
    path = f"/v1/webhooks/{make(http, receiver.url)['id']}:test"

    first, second = (http.post(path, headers={"Idempotency-Key": "test-once"}) for _ in range(2))

    assert first.json() == second.json()
    assert second.headers["Idempotency-Replayed"] == "true"
    assert len(receiver.received) == 1


def test_a_test_of_nobody_is_an_answer_too(http: httpx2.Client) -> None:
    answer = http.post(f"/v1/webhooks/{make(http, 'http://127.0.0.1:1/')['id']}:test")

    assert (answer.status_code, answer.json()["state"], answer.json()["log"][0]["status"]) == (200, "failed", None)
    assert "refused" in answer.json()["log"][0]["error"]


def test_deliveries_are_listed_with_their_attempts_and_sent_again(
    http: httpx2.Client, world: World, receiver: Receiver
) -> None:
    path = f"/v1/webhooks/{make(http, receiver.url, tag='listed')['id']}"
    receiver.status = 500
    run = make_run(world.services.database, tags=["listed"])
    send_all(world)
    (failed,) = http.get(f"{path}/deliveries", params={"filter": "state = pending AND type = run_*"}).json()[
        "deliveries"
    ]
    receiver.status = 204

    asked = http.post(f"{path}/deliveries/{failed['id']}:redeliver").json()
    send_all(world)
    done = http.get(f"{path}/deliveries/{failed['id']}").json()

    assert (failed["run_id"], failed["seq"], failed["attempts"], failed["log"][0]["status"]) == (run.id, 1, 1, 500)
    assert "payload" not in failed
    assert asked["next_try_at"] < failed["next_try_at"]
    assert (done["state"], [each["status"] for each in done["log"]]) == ("succeeded", [500, 204])
    assert done["payload"] == receiver.received[-1].body.decode()
    assert receiver.ids() == [failed["id"]] * 2


def test_nothing_is_sent_again_to_a_disabled_webhook(http: httpx2.Client, receiver: Receiver) -> None:
    path = f"/v1/webhooks/{make(http, receiver.url)['id']}"
    sent = http.post(f"{path}:test").json()["id"]
    http.patch(path, json={"enabled": False})

    refused = http.post(f"{path}/deliveries/{sent}:redeliver")

    assert (refused.status_code, refused.json()["code"]) == (409, "webhook_disabled")


def test_a_delivery_of_another_webhook_is_not_found(http: httpx2.Client, receiver: Receiver) -> None:
    sent = http.post(f"/v1/webhooks/{make(http, receiver.url)['id']}:test").json()["id"]

    answer = http.get(f"/v1/webhooks/{make(http)['id']}/deliveries/{sent}")

    assert (answer.status_code, answer.json()["code"]) == (404, "delivery_not_found")


def test_a_rotated_secret_signs_beside_the_old_one_for_a_while(http: httpx2.Client, receiver: Receiver) -> None:
    made = make(http, receiver.url)
    path = f"/v1/webhooks/{made['id']}"

    both = http.post(f"{path}:rotate", json={}).json()
    http.post(f"{path}:test")
    alone = http.post(f"{path}:rotate", json={"overlap_seconds": 0}).json()
    http.post(f"{path}:test")

    first, second = receiver.received
    assert len({made["secret"], both["secret"], alone["secret"]}) == 3
    assert first.verified(made["secret"]) == first.verified(both["secret"])
    assert second.verified(alone["secret"])
    assert len(second.headers["webhook-signature"].split()) == 1
