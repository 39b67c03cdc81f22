"""`POST /v1/configs:upgrade`."""

from collections.abc import Iterator

import httpx2
import pytest
import yaml

from tests.server.app.world import open_world

FLAT = {"A": {"trainer": "ppo", "use_recurrent": False, "self_play": {}, "colour": "red"}}


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    with open_world(tmp_path_factory.mktemp("upgrade")) as world:
        yield world.http


def test_an_old_configuration_is_answered_in_the_format_of_today(http: httpx2.Client) -> None:
    answer = http.post("/v1/configs:upgrade", json={"config": FLAT})

    assert answer.status_code == 200
    done = answer.json()
    assert yaml.safe_load(done["document"]) == {"behaviors": {"A": {"trainer_type": "ppo", "self_play": {}}}}
    assert not done["unchanged"]
    assert {"path": "*.trainer", "to": "behaviors.*.trainer_type"}.items() <= done["changes"][0].items()
    assert [(drop["path"], drop["value"]) for drop in done["dropped"]] == [("A.colour", "red")]
    assert done["problems"] == []


def test_a_yaml_body_is_the_configuration(http: httpx2.Client) -> None:
    text = "behaviors:\n  A: {}  # mine\n"

    answer = http.post("/v1/configs:upgrade", content=text, headers={"Content-Type": "application/yaml"})

    assert answer.json() == {"document": text, "unchanged": True, "changes": [], "dropped": [], "problems": []}


def test_the_files_beside_an_old_configuration_are_merged_into_it(http: httpx2.Client) -> None:
    body = {
        "config": yaml.safe_dump(FLAT),
        "curriculum": {"A": {"measure": "reward", "thresholds": [1], "parameters": {"height": [1, 2]}}},
        "sampler": "mass: {sampler-type: gaussian}",
    }

    done = http.post("/v1/configs:upgrade", json=body).json()

    assert list(yaml.safe_load(done["document"])["environment_parameters"]) == ["mass", "height"]


@pytest.mark.parametrize("config", ["", "x: 1", "a: [", 3])
def test_what_is_no_configuration_is_refused(http: httpx2.Client, config: object) -> None:
    answer = http.post("/v1/configs:upgrade", json={"config": config})

    assert answer.status_code == 422
