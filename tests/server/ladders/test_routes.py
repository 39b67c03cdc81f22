"""Ladders over HTTP."""

from typing import Any

import httpx2
import pytest

from server.lifecycle.attempts import AttemptLedger
from tests.factories import claim_run, make_run
from tests.server.app.world import World
from tests.server.ladders.played import SELF_PLAY, make_match, rate_all


@pytest.fixture(scope="module")
def run(world: World) -> str:
    """Play eight matches in a run, rate them, and return the run's id."""
    database = world.services.database
    run_id = make_run(database, name="played", config=SELF_PLAY).id
    outcomes = ["win", "draw", "loss", "win"] * 2
    AttemptLedger(database, claim_run(database, run_id)).matches.append(
        [make_match(number, outcome, number % 2) for number, outcome in enumerate(outcomes, 1)]  # type: ignore[arg-type]
    )
    rate_all(database)
    return run_id


def post(http: httpx2.Client, path: str, body: dict[str, Any], key: str | None = None) -> httpx2.Response:
    return http.post(path, json=body, headers={} if key is None else {"Idempotency-Key": key})


def league(http: httpx2.Client, name: str, *players: str) -> str:
    """Make a ladder with people, and return its address."""
    assert post(http, "/v1/ladders", {"name": name}).status_code == 201
    for player in players:
        assert post(http, f"/v1/ladders/{name}/players", {"name": player, "kind": "human"}).status_code == 201
    return f"/v1/ladders/{name}"


def test_a_ladder_is_made_listed_read_and_deleted(http: httpx2.Client) -> None:
    made = post(http, "/v1/ladders", {"name": "cup", "description": "of 2026", "initial_elo": 1000})
    listed = http.get("/v1/ladders", params={"filter": "name = cup"}).json()["ladders"]
    gone = http.delete("/v1/ladders/cup")

    assert made.status_code == 201
    assert made.headers["location"] == f"/v1/ladders/{made.json()['id']}"
    assert listed == [made.json()]
    assert (made.json()["initial_elo"], made.json()["matches"], made.json()["run_id"]) == (1000, 0, None)
    assert gone.status_code == 204
    assert http.get("/v1/ladders/cup").json()["code"] == "ladder_not_found"


def test_a_runs_ladder_is_found_by_the_runs_name(http: httpx2.Client, run: str) -> None:
    found = http.get("/v1/ladders/played").json()

    assert (found["name"], found["run_id"], found["matches"], found["rated_through"]) == ("played", run, 8, 8)
    assert http.get(f"/v1/ladders/{run}").json() == found


def test_a_live_runs_ladder_is_not_deleted(http: httpx2.Client, run: str) -> None:
    refused = http.delete(f"/v1/ladders/{run}")

    assert (refused.status_code, refused.json()["code"]) == (409, "ladder_in_use")


def test_players_and_ratings_are_listed(http: httpx2.Client, run: str) -> None:
    players = http.get("/v1/ladders/played/players").json()["players"]
    page = http.get("/v1/ladders/played/ratings").json()
    snapshots = http.get("/v1/ladders/played/ratings", params={"filter": "kind = snapshot AND fixed = false"}).json()
    by_ordinal = http.get("/v1/ladders/played/ratings", params={"order_by": "ordinal desc", "page_size": 1}).json()
    second = http.get(
        "/v1/ladders/played/ratings",
        params={"order_by": "ordinal desc", "page_size": 1, "page_token": by_ordinal["next_page_token"]},
    ).json()

    assert [(each["id"], each["name"], each["kind"]) for each in players] == [
        (1, "played/Striker", "policy"),
        (2, "played/Striker#0", "snapshot"),
        (3, "played/Striker#1", "snapshot"),
    ]
    assert (page["matches"], page["rated_through"]) == (8, 8)
    elos = [each["elo"] for each in page["ratings"]]
    assert elos == sorted(elos, reverse=True)
    assert {each["id"] for each in snapshots["ratings"]} == {2, 3}
    ordinals = [by_ordinal["ratings"][0]["ordinal"], second["ratings"][0]["ordinal"]]
    assert ordinals == sorted((each["ordinal"] for each in page["ratings"]), reverse=True)[:2]
    assert all(each["ordinal"] == pytest.approx(each["mu"] - 3 * each["sigma"]) for each in page["ratings"])


def test_a_history_runs_over_matches_steps_and_times(http: httpx2.Client, run: str) -> None:
    answer = http.get("/v1/ladders/played/ratings/history", params={"points": 4}).json()
    (series,) = answer["series"]
    named = http.get("/v1/ladders/played/ratings/history", params={"players": [3, 2]}).json()["series"]

    assert (series["id"], series["total"], series["games"], series["matches"]) == (1, 8, [2, 4, 6, 8], [2, 4, 6, 8])
    assert series["steps"] == [200, 400, 600, 800]
    assert series["times"][0] == "1970-01-01T00:16:42Z"
    ratings = http.get("/v1/ladders/played/ratings", params={"filter": "id = 1"}).json()["ratings"]
    assert (series["elo"][-1], series["mu"][-1], series["sigma"][-1]) == tuple(
        ratings[0][name] for name in ("elo", "mu", "sigma")
    )
    assert [each["id"] for each in named] == [2, 3]


def test_payoffs_have_both_sides_of_every_pair(http: httpx2.Client, run: str) -> None:
    found = http.get("/v1/ladders/played/payoffs").json()
    few = http.get("/v1/ladders/played/payoffs", params={"players": [1, 3]}).json()

    # snapshot 1 plays the odd matches: win, loss, win, loss; snapshot 0 the even ones: draw, win, draw, win
    assert [each["id"] for each in found["players"]] == [1, 2, 3]
    assert found["wins"] == [[0, 2, 2], [0, 0, 0], [2, 0, 0]]
    assert found["draws"] == [[0, 2, 0], [2, 0, 0], [0, 0, 0]]
    assert found["losses"] == [[0, 0, 2], [2, 0, 0], [2, 0, 0]]
    assert found["games"] == [[0, 4, 4], [4, 0, 0], [4, 0, 0]]
    assert found["scores"] == [[None, 0.75, 0.5], [0.25, None, None], [0.5, None, None]]
    assert few["wins"] == [[0, 2], [2, 0]]


def test_matches_come_in_pages_with_their_players(http: httpx2.Client, run: str) -> None:
    page = http.get("/v1/ladders/played/matches", params={"filter": "player = 2", "page_size": 3}).json()
    rest = http.get(
        "/v1/ladders/played/matches",
        params={"filter": "player = 2", "page_size": 3, "page_token": page["next_page_token"]},
    ).json()

    assert [each["seq"] for each in [*page["matches"], *rest["matches"]]] == [8, 6, 4, 2]
    assert rest["next_page_token"] == ""
    newest = page["matches"][0]
    assert (newest["run_id"], newest["number"], newest["step"], newest["outcome"]) == (run, 8, 800, "win")
    assert newest["participants"][0] == {
        "player": 1,
        "name": "played/Striker",
        "team": 0,
        "rank": 1,
        "score": None,
        "step": 800,
    }
    refused = http.get("/v1/ladders/played/matches", params={"filter": "rated = maybe"})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_filter")


def test_a_reported_match_is_rated(http: httpx2.Client, world: World) -> None:
    path = league(http, "open", "ann", "bob")
    body = {"participants": [{"player": "ann", "score": 3}, {"player": 2, "score": 1}], "at": "2026-01-31T12:00:00Z"}

    entered = post(http, f"{path}/matches", body)
    rate_all(world.services.database)

    assert entered.status_code == 201
    assert (entered.json()["seq"], entered.json()["outcome"], entered.json()["at"]) == (1, "win", body["at"])
    ratings = http.get(f"{path}/ratings").json()["ratings"]
    assert [(each["name"], each["elo"], each["games"]) for each in ratings] == [("ann", 1200.5, 1), ("bob", 1199.5, 1)]


def test_a_repeated_report_is_entered_once(http: httpx2.Client) -> None:
    path = league(http, "twice", "ann", "bob")
    body = {"participants": [{"player": "ann"}, {"player": "bob", "team": 1}], "outcome": "draw"}

    first, again = (post(http, f"{path}/matches", body, key="match-1") for _ in range(2))

    assert first.json() == again.json()
    assert again.headers["idempotency-replayed"] == "true"
    assert http.get(path).json()["matches"] == 1


def two(first: Any, second: Any, **fields: Any) -> dict[str, Any]:
    return {"participants": [{"player": "ann", "score": first}, {"player": "bob", "score": second}], **fields}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (two(1, 0) | {"participants": [{"player": "ann", "score": 1}]}, 422, "invalid_match"),
        (two(1, 0, outcome="win"), 422, "invalid_match"),
        (two(1, None), 422, "invalid_match"),
        ({"participants": [{"player": "ann"}, {"player": 1}], "outcome": "win"}, 422, "invalid_match"),
        ({"participants": [{"player": "ann"}, {"player": "nobody"}], "outcome": "win"}, 404, "player_not_found"),
        ({"participants": [{"player": "ann"}, {"player": 7}], "outcome": "win"}, 404, "player_not_found"),
        (two(None, None, outcome="victory"), 422, "invalid_request"),
        ({"participants": [{"player": True}, {"player": "bob"}], "outcome": "win"}, 422, "invalid_request"),
    ],
)
def test_what_is_no_match_is_refused_by_name(
    http: httpx2.Client, refusals: str, body: dict[str, Any], status: int, code: str
) -> None:
    answer = post(http, f"{refusals}/matches", body)

    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert http.get(refusals).json()["matches"] == 0


@pytest.fixture(scope="module")
def refusals(world: World) -> str:
    """Make a ladder at which everything is refused."""
    return league(world.http, "refusals", "ann", "bob")


@pytest.mark.parametrize("score", ["NaN", "Infinity", "1e999"])
def test_a_score_that_is_no_finite_number_is_refused_by_name(http: httpx2.Client, refusals: str, score: str) -> None:
    text = f'{{"participants": [{{"player": "ann", "score": {score}}}, {{"player": "bob", "score": 0}}]}}'

    answer = http.post(f"{refusals}/matches", content=text, headers={"Content-Type": "application/json"})

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_match")
    assert "finite" in answer.json()["detail"]


def test_names_that_are_taken_or_unknown_are_refused_by_name(http: httpx2.Client, refusals: str) -> None:
    taken = post(http, "/v1/ladders", {"name": "refusals"})
    twice = post(http, f"{refusals}/players", {"name": "ann", "kind": "scripted"})
    unknown = post(http, "/v1/ladders/nowhere/players", {"name": "ann", "kind": "scripted"})
    nameless = post(http, "/v1/ladders", {"description": "?"})
    stranger = http.get(f"{refusals}/ratings/history", params={"players": 9})

    codes = [(each.status_code, each.json()["code"]) for each in (taken, twice, unknown, nameless, stranger)]
    assert codes == [
        (409, "ladder_exists"),
        (409, "player_exists"),
        (404, "ladder_not_found"),
        (422, "invalid_request"),
        (404, "player_not_found"),
    ]


def test_a_fixed_player_says_so(http: httpx2.Client) -> None:
    path = league(http, "walls")
    body = {"name": "wall", "kind": "scripted", "fixed": True, "elo": 1500, "mu": 30, "sigma": 1}

    made = post(http, f"{path}/players", body)

    assert (made.status_code, made.json()["fixed"], made.json()["kind"]) == (201, True, "scripted")
    (rating,) = http.get(f"{path}/ratings").json()["ratings"]
    assert (rating["fixed"], rating["elo"], rating["mu"], rating["sigma"], rating["ordinal"]) == (True, 1500, 30, 1, 27)


def test_recomputed_ratings_are_those_that_were_there(http: httpx2.Client, world: World, run: str) -> None:
    paths = [f"/v1/ladders/played/{name}" for name in ("ratings", "ratings/history", "payoffs")]
    before = [http.get(path).content for path in paths]

    started = http.post("/v1/ladders/played:recompute")
    meanwhile = http.get("/v1/ladders/played/ratings").json()
    rate_all(world.services.database)

    assert (started.status_code, started.json()["rated_through"], meanwhile["rated_through"]) == (200, 0, 0)
    assert [http.get(path).content for path in paths] == before


def test_a_run_plays_on_the_ladder_that_it_names_and_on_no_unknown_one(http: httpx2.Client) -> None:
    http.post("/v1/ladders", json={"name": "trophy"}).raise_for_status()

    def create(name: str) -> httpx2.Response:
        return http.post("/v1/runs", json={"config": {"behaviors": {"A": {"self_play": {"ladder": name}}}}})

    refused = create("nobodys")
    taken = create("trophy")

    assert refused.status_code == 422
    (mistake,) = refused.json()["errors"]
    assert (mistake["path"], mistake["code"]) == ("behaviors.A.self_play.ladder", "not_found")
    assert taken.status_code == 201
    found = http.get(f"/v1/ladders/{taken.json()['id']}").json()
    assert found["name"] == "trophy"


def test_players_are_filtered_and_sorted_by_the_names_that_are_shown(http: httpx2.Client, world: World) -> None:
    path = league(http, "twins")
    config = {"behaviors": {"Striker": {"self_play": {"ladder": "twins"}}}}
    for name in ("twin", "twin", "other"):
        run = world.create(config, name=name)["id"]
        world.claim(run).start().ledger.matches.append([make_match(1, snapshot=0)])

    def listed(**parameters: Any) -> list[int]:
        answer = http.get(f"{path}/players", params={"order_by": "name", "page_size": 2} | parameters).json()
        token = answer["next_page_token"]
        rest = listed(**{**parameters, "page_token": token}) if token else []
        return [each["id"] for each in answer["players"]] + rest

    assert listed(filter='name = "twin/*"') == [1, 3, 2, 4]
    assert listed(filter='name = "twin/Striker#0"') == [2, 4]
    assert listed() == [5, 6, 1, 3, 2, 4]
    (shared,) = http.get("/v1/ladders", params={"filter": 'name = "twins"'}).json()["ladders"]
    assert (shared["name"], shared["run_id"]) == ("twins", None)
