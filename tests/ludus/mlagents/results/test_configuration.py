from pathlib import Path
from typing import Any

import pytest
import yaml

from ludus.mlagents.results.configuration import behavior_settings, render
from server.config.resolution import resolve
from tests.ludus.mlagents.results.reading import REAL

LOCAL = ("env_settings", "engine_settings", "checkpoint_settings")


def rendered(document: dict[str, Any], seed: int = 1) -> str:
    resolved = resolve(document, local=True).with_seed(seed).model_dump(mode="json")
    return render(resolved, document, {key: document[key] for key in LOCAL if key in document}, seed)


@pytest.mark.parametrize("folder", sorted(path for path in REAL.iterdir() if path.is_dir()), ids=lambda path: path.name)
def test_what_mlagents_wrote_comes_back_letter_by_letter(folder: Path) -> None:
    text = (folder / "configuration.yaml").read_text()

    assert rendered(yaml.safe_load(text)) == text


def test_keys_of_ludus_stand_behind_and_only_where_they_were_given() -> None:
    signals = {"gail": {"demonstrations": ["dem_" + 26 * "0"]}}
    given = {"behaviors": {"A": {"reward_signals": signals}}, "simulators": {"grace_seconds": 5}}

    written = yaml.safe_load(rendered(given))

    assert list(written) == [
        *("default_settings", "behaviors", "env_settings", "engine_settings", "environment_parameters"),
        *("checkpoint_settings", "torch_settings", "debug", "simulators"),
    ]
    gail = written["behaviors"]["A"]["reward_signals"]["gail"]
    assert list(gail)[-2:] == ["demo_path", "demonstrations"]
    assert "critic_learning_rate" not in written["behaviors"]["A"]["hyperparameters"], "nobody asked for it"


def test_paths_are_those_of_the_user_and_not_ids_of_a_server() -> None:
    resolved = resolve({"behaviors": {"A": {"behavioral_cloning": {"demonstrations": ["dem_" + 26 * "0"]}}}})
    given = {"behavioral_cloning": {"demo_path": "demos/expert.demo"}, "init_path": "old/checkpoint.pt"}

    settings = behavior_settings(resolved.model_dump(mode="json")["behaviors"]["A"], given)

    assert settings["behavioral_cloning"]["demo_path"] == "demos/expert.demo"
    assert "demonstrations" not in settings["behavioral_cloning"]
    assert settings["init_path"] == "old/checkpoint.pt"


def test_constant_parameters_are_written_as_lessons_and_counted_with_the_others() -> None:
    uniform = {"sampler_type": "uniform", "sampler_parameters": {"min_value": 0, "max_value": 2}}

    written = yaml.safe_load(rendered({"behaviors": {"A": {}}, "environment_parameters": {"u": uniform, "c": 1.5}}, 7))

    (drawn,) = written["environment_parameters"]["u"]["curriculum"]
    (fixed,) = written["environment_parameters"]["c"]["curriculum"]
    assert drawn["value"]["sampler_parameters"] == {"seed": 7, "min_value": 0.0, "max_value": 2.0}
    assert fixed == {
        "value": {"sampler_type": "constant", "sampler_parameters": {"seed": 8, "value": 1.5}},
        "name": "c",
        "completion_criteria": None,
    }


def test_lessons_are_written_with_ml_agents_keys_and_of_our_own_those_that_say_something() -> None:
    def lesson(**criteria: object) -> dict[str, object]:
        return {"name": "L", "value": 1, "completion_criteria": {"behavior": "A", "threshold": 1, **criteria}}

    curriculum = [lesson(), lesson(count_all_episodes=True, fall_back_below=0.5), {"name": "end", "value": 2}]
    parameters = {"plain": {"curriculum": curriculum}, "own": {"curriculum": curriculum, "starting_lesson": "end"}}

    written = yaml.safe_load(rendered({"behaviors": {"A": {}}, "environment_parameters": parameters}))

    first, second, last = written["environment_parameters"]["plain"]["curriculum"]
    ml_agents = {
        "behavior": "A",
        "measure": "reward",
        "min_lesson_length": 0,
        "signal_smoothing": True,
        "threshold": 1.0,
        "require_reset": False,
    }
    assert first["completion_criteria"] == ml_agents
    assert second["completion_criteria"] == {**ml_agents, "count_all_episodes": True, "fall_back_below": 0.5}
    assert last["completion_criteria"] is None
    assert list(written["environment_parameters"]["plain"]) == ["curriculum"]
    assert written["environment_parameters"]["own"]["starting_lesson"] == "end"
