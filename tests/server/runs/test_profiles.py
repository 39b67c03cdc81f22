"""Requests for profiles over HTTP."""

import pytest

from ludus.schemas.states import RunState
from tests.server.app.world import World


def test_a_request_is_answered_once_by_the_attempt_that_it_was_made_to(world: World) -> None:
    trainer = world.claim(world.create()["id"]).start()
    url = f"/v1/runs/{trainer.run_id}"

    first = world.http.post(f"{url}:profile", json={"seconds": 3})
    again = world.http.post(f"{url}:profile")
    asked = trainer.ledger.profiles.requested()
    assert asked is not None
    trainer.ledger.profiles.answer(asked, log="profile-1.svg")

    assert (first.status_code, first.json()["number"], first.json()["seconds"]) == (202, 1, 3)
    assert again.json() == first.json(), "while it is pending"
    assert trainer.ledger.profiles.requested() is None
    answered = world.http.get(f"{url}/profile").json()
    assert (answered["answered"], answered["log"], answered["problem"]) == (True, "profile-1.svg", None)
    assert world.http.post(f"{url}:profile").json()["number"] == 2


@pytest.mark.parametrize("seconds", [0, 301, 1.5, "long", None])
def test_other_lengths_are_refused_by_name(world: World, seconds: object) -> None:
    trainer = world.claim(world.create()["id"]).start()

    refused = world.http.post(f"/v1/runs/{trainer.run_id}:profile", json={"seconds": seconds})

    assert refused.status_code == 422
    assert "seconds" in refused.text


def test_only_a_running_run_is_profiled(world: World) -> None:
    run = world.create()["id"]
    waiting = world.http.post(f"/v1/runs/{run}:profile")
    trainer = world.claim(run).start()
    none = world.http.get(f"/v1/runs/{run}/profile")
    trainer.ledger.move(RunState.SUCCEEDED)

    assert (waiting.status_code, waiting.json()["code"]) == (409, "run_not_running")
    assert (none.status_code, none.json()["code"]) == (404, "profile_not_found")
    assert world.http.post(f"/v1/runs/{run}:profile").json()["code"] == "run_ended"
