"""Problems of a configuration that was sent as text say line and column; over HTTP."""

from typing import Any

import httpx2
import pytest
import yaml

from server.kit.principal import ANONYMOUS

TEXT = """\
# mine
behaviors:
  my.bot:
    max_steps: -5
    hyperparameters:
      batch_sizes: 64
  other:
    hyperparameters: {learning_rate: 1.0}
"""
MISTAKES = {'behaviors."my.bot".max_steps': (4, 5), 'behaviors."my.bot".hyperparameters.batch_sizes': (6, 7)}
DOUBTED = TEXT.replace("-5", "5").replace("batch_sizes", "batch_size")
YAML = {"Content-Type": "application/yaml"}


def lines(answer: httpx2.Response) -> dict[str, tuple[int | None, int | None]]:
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_config"), answer.text
    return {each["path"]: (each["line"], each["column"]) for each in answer.json()["errors"]}


def test_mistakes_of_a_run_have_lines_if_its_configuration_is_a_text(http: httpx2.Client) -> None:
    bare = http.post("/v1/runs", content=TEXT, headers=YAML)
    inside = http.post("/v1/runs", json={"config": TEXT})
    parsed = http.post("/v1/runs", json={"config": yaml.safe_load(TEXT)})

    assert lines(bare) == lines(inside) == MISTAKES
    assert lines(parsed) == dict.fromkeys(MISTAKES, (None, None))
    assert "line 4, column 5: behaviors" in bare.json()["detail"]


def test_an_override_has_no_line(http: httpx2.Client) -> None:
    overrides = {"behaviors.other.max_steps": -1, 'behaviors."my.bot".hyperparameters.batch_sizes': 0}

    found = lines(http.post("/v1/runs", json={"config": TEXT, "overrides": overrides}))

    assert found == {**MISTAKES, "behaviors.other.max_steps": (None, None), [*MISTAKES][1]: (None, None)}


@pytest.mark.parametrize("text", [TEXT, "behaviors: [1\n"])
def test_mistakes_of_a_stored_configuration_have_lines(http: httpx2.Client, text: str) -> None:
    stored = http.post("/v1/configs/with-lines/versions", content=text, headers=YAML)
    run = http.post("/v1/runs", content=text, headers=YAML)

    assert lines(stored) == lines(run)
    assert all(line is not None for line, _ in lines(stored).values())


def test_what_a_configuration_names_and_the_server_does_not_have_has_a_line(http: httpx2.Client) -> None:
    text = f"behaviors:\n  A:\n    initialize_from: ckpt_{'0' * 26}\n"

    assert lines(http.post("/v1/runs", content=text, headers=YAML)) == {"behaviors.A.initialize_from": (3, 5)}


def test_warnings_of_a_planned_run_have_lines_and_so_have_its_events(http: httpx2.Client) -> None:
    planned = http.post("/v1/runs?validate_only=true", content=DOUBTED, headers=YAML).json()
    run = http.post("/v1/runs", content=DOUBTED, headers=YAML).json()
    events: list[dict[str, Any]] = http.get(f"/v1/runs/{run['id']}/events").json()["events"]

    warnings = planned["warnings"]
    doubted = [event["data"] for event in events if event["type"] == "config_doubted"]
    assert doubted == [{**warning, "by": ANONYMOUS} for warning in warnings]
    (warning,) = [warning for warning in warnings if warning["path"].endswith("learning_rate")]
    assert (warning["path"], warning["line"], warning["column"]) == (
        "behaviors.other.hyperparameters.learning_rate",
        8,
        23,
    )


def test_problems_of_an_upgrade_have_the_lines_of_the_new_document(http: httpx2.Client) -> None:
    old = "# old\n\nA: {trainer: ppo, max_steps: -5}\n"

    done = http.post("/v1/configs:upgrade", content=old, headers=YAML).json()
    [problem] = done["problems"]

    assert problem["path"] == "behaviors.A.max_steps"
    assert done["document"].splitlines()[problem["line"] - 1].strip() == "max_steps: -5"


def test_an_old_document_that_cannot_be_upgraded_has_lines_and_the_files_beside_it_have_names(
    http: httpx2.Client,
) -> None:
    old = "A:\n  trainer: sac\n  train_interval: 2\n  num_update: 0\n"
    beside = {"config": old.replace("0", "1"), "sampler": "mass:\n  x: [1"}

    refused = http.post("/v1/configs:upgrade", content=old, headers=YAML)
    broken = http.post("/v1/configs:upgrade", json=beside)

    assert lines(refused) == {"A.num_update": (4, 3)}
    assert lines(broken) == {"sampler": (None, None)}
    assert "line 3, column 1" in broken.json()["detail"]
