"""`ludus experiment` against a real server: what it changes, and what it tries again."""

import pytest

from ludus.client import Client
from tests.factories import save_checkpoints
from tests.ludus.cli.conftest import Invoke
from tests.server.app.world import World
from tests.server.lifecycle.experiments.played import begin, body


@pytest.fixture(scope="module")
def champion(world: World) -> str:
    (checkpoint,) = save_checkpoints(world.services.database, 1000)
    return checkpoint


def test_any_kind_of_objective_is_set_while_no_trial_has_a_value(
    world: World, client: Client, cli: Invoke, champion: str
) -> None:
    name = client.experiments.create(body("sets")).name

    for options, expected in (
        (("--objective", f"{{match: {{champion: {champion}}}}}"), {"match": {"champion": champion}}),
        (("--metric", "Losses/Value Loss"), {"metric": "Losses/Value Loss", "match": None}),
        (("--objective", "{evaluate: {episodes: 7}}"), {"evaluate": {"episodes": 7}}),
        (("--behavior", "CartPole"), {"evaluate": {"episodes": 7}, "behavior": "CartPole"}),
        (("--objective", "{rating: ordinal, last: 1}"), {"rating": "ordinal", "last": 1, "evaluate": None}),
        (("--metric", "reward"), {"metric": "Environment/Cumulative Reward", "rating": None}),
    ):
        found = cli("experiment", "set", name, *options)

        assert found.exit_code == 0, found.output
        objective = client.experiments.get(name).spec["objective"]
        assert {key: objective[key] for key in expected} == expected, options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "Give at least one option"),
        (("--objective", "{rating: elo}", "--metric", "reward"), "Give the whole --objective, or --metric"),
        (("--objective", "["), "is not YAML: "),
        (("--objective", "ordinal"), "'ordinal' is no mapping of keys, as '{rating: ordinal}'"),
        (("--objective", ""), "is no mapping of keys"),
    ],
)
def test_an_objective_that_is_none_is_refused(
    client: Client, cli: Invoke, options: tuple[str, ...], words: str
) -> None:
    name = next(client.experiments.list('name = "refuses"'), None) or client.experiments.create(body("refuses"))

    found = cli("experiment", "set", name.name, *options)

    assert found.exit_code == 2
    assert words in found.output


def test_stopped_trials_are_tried_again(world: World, client: Client, cli: Invoke) -> None:
    played = begin(world, body("retries", budget={"runs": 1}))
    played.turn()
    cli("experiment", "stop", "retries")
    assert (
        "1 trial was stopped before its end; `ludus experiment retry retries` tries it"
        in cli("experiment", "show", "retries").output
    )

    found = cli("experiment", "retry", "retries")

    assert found.exit_code == 0, found.output
    assert "1 RUNNING" in found.output
    refused = cli("experiment", "retry", "retries", "--trial", "0")
    assert refused.exit_code != 0
    assert "is RUNNING. Only trials that are STOPPED or FAILED are tried again" in refused.output
