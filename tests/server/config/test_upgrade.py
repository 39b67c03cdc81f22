"""Files of older releases, in the format of today: what they say, what was changed, what was dropped."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from ludus.config.behavior import CloneConfig, PPOConfig, SACConfig
from server.config.resolution import resolve, review
from server.config.upgrade import Upgrade, upgrade
from server.kit.errors import InvalidConfig
from tests.server.config.checks import codes_of

CONFIGS = Path(__file__).parents[2] / "data" / "configs"
OLD = {path.stem: path.read_text(encoding="utf-8") for path in (CONFIGS / "old").glob("*.yaml")}
NEW = {path.stem: path.read_text(encoding="utf-8") for path in CONFIGS.glob("*.yaml")}


def block(**keys: Any) -> dict[str, Any]:
    """Write a flat file with one behavior, `A`."""
    return {"A": {"trainer": "ppo", "use_recurrent": False, **keys}}


def changed(done: Upgrade) -> dict[str, str]:
    """Return where things are now by where they were."""
    return {change.path: change.to for change in done.changes}


def dropped(done: Upgrade) -> set[str]:
    """Return where was what there is no more."""
    return {drop.path for drop in done.dropped}


# Real files


def test_all_old_files_are_here() -> None:
    assert OLD.keys() == {"gail_config", "offline_bc_config", "sac_trainer_config", "trainer_config", "wall_jump"}


@pytest.mark.parametrize("name", sorted(OLD))
def test_an_old_file_becomes_one_that_resolves(name: str) -> None:
    done = upgrade(OLD[name])

    config, warnings = review(done.text, local=True)

    assert not done.unchanged
    # ML-Agents' own example trains tennis by SAC in self-play, which is advised against.
    advised = ["behaviors.Tennis.self_play"] if name == "sac_trainer_config" else []
    assert [warning.path for warning in warnings] == advised
    assert config.behaviors.keys() == yaml.safe_load(OLD[name]).keys() - {"default"}
    assert yaml.safe_load(done.text) == done.document


@pytest.mark.parametrize("name", ["gail_config", "sac_trainer_config", "offline_bc_config"])
def test_an_old_file_with_recordings_is_refused_for_those_to_upload_alone(name: str) -> None:
    document = upgrade(OLD[name]).document

    assert set(codes_of(document).values()) == {"path_refused"}
    with pytest.raises(InvalidConfig, match=r"ludus demonstration upload \S+\.demo"):
        resolve(document)


@pytest.mark.parametrize("name", sorted(OLD))
def test_every_value_of_an_old_file_is_in_the_new_one_or_in_the_report(name: str) -> None:
    done = upgrade(OLD[name])
    listed = {change.path for change in done.changes} | dropped(done)

    for behavior, keys in yaml.safe_load(OLD[name]).items():
        kept = done.document["behaviors"].get(behavior, {})
        for key, value in keys.items():
            told = {f"{behavior}.{key}", f"*.{key}", behavior} & listed
            assert told or key in kept or behavior == "default", (behavior, key)
            if key in kept and key not in {"reward_signals", "self_play"}:
                assert kept[key] == value


def test_the_numbers_of_an_old_file_are_kept() -> None:
    config = resolve(upgrade(OLD["trainer_config"]).document).behaviors["Hallway"]

    assert isinstance(config, PPOConfig)
    assert (config.hyperparameters.batch_size, config.hyperparameters.buffer_size) == (128, 1024)
    assert config.hyperparameters.beta == 0.01
    assert config.hyperparameters.lambd == 0.95  # from `default`
    assert config.network_settings.memory is not None
    assert config.network_settings.memory.sequence_length == 64
    assert config.max_steps == 10_000_000


def test_signals_of_a_behavior_replace_those_of_the_default() -> None:
    config = resolve(upgrade(OLD["gail_config"]).document, local=True).behaviors["PushBlock"]

    assert isinstance(config, PPOConfig)
    assert [name for name, _ in config.reward_signals.active()] == ["gail"]
    assert config.reward_signals.active()[0][1].network_settings.hidden_units == 128  # type: ignore[union-attr]


def test_updates_per_interval_become_steps_per_update() -> None:
    done = upgrade(OLD["sac_trainer_config"])
    config = resolve(done.document, local=True)

    walker, basic = config.behaviors["Walker"], config.behaviors["Basic"]
    assert isinstance(walker, SACConfig)
    assert isinstance(basic, SACConfig)
    assert (walker.hyperparameters.steps_per_update, basic.hyperparameters.steps_per_update) == (2, 1)
    assert changed(done)["Walker.train_interval"] == "behaviors.Walker.hyperparameters.steps_per_update"
    tennis = config.behaviors["Tennis"]
    assert isinstance(tennis, SACConfig)
    assert tennis.self_play is not None
    assert tennis.self_play.play_against_latest_model_ratio == 0.5


def test_offline_cloning_becomes_a_clone_run() -> None:
    done = upgrade(OLD["offline_bc_config"])
    config = resolve(done.document, local=True).behaviors["Hallway"]

    assert isinstance(config, CloneConfig)
    assert config.demo_path == "./demos/ExpertHallway.demo"
    assert (config.hyperparameters.batch_size, config.max_steps) == (64, 500_000)
    assert config.network_settings.memory is not None
    assert {"Hallway.batches_per_epoch", "Hallway.num_epoch"} <= dropped(done)


def test_a_curriculum_beside_its_trainers_becomes_lessons() -> None:
    done = upgrade(OLD["trainer_config"], curriculum=OLD["wall_jump"])
    config = resolve(done.document)

    lessons = config.lessons()["big_wall_min_height"]
    assert [lesson.value for lesson in lessons] == [0, 4, 6, 8]
    assert [lesson.name for lesson in lessons] == ["Lesson0", "Lesson1", "Lesson2", "Lesson3"]
    criteria = lessons[1].completion_criteria
    assert criteria is not None
    assert (criteria.behavior, criteria.measure, criteria.threshold) == ("BigWallJump", "progress", 0.3)
    assert (criteria.min_lesson_length, criteria.signal_smoothing) == (100, True)
    assert lessons[3].completion_criteria is None


@pytest.mark.parametrize("name", sorted(NEW.keys() - {"ppo-SoccerTwos"}))
def test_a_file_of_today_stays_as_it_is_to_the_last_comment(name: str) -> None:
    done = upgrade(NEW[name])

    assert done.unchanged
    assert done.text == NEW[name]


def test_the_file_that_ml_agents_refuses_loses_the_key_that_it_refuses() -> None:
    done = upgrade(NEW["ppo-SoccerTwos"])

    assert dropped(done) == {"behaviors.SoccerTwos.output_path"}
    resolve(done.document)


# Keys


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"train_interval": 4, "num_update": 2}, {"steps_per_update": 2}),
        ({"train_interval": 1, "num_update": 4}, {"steps_per_update": 0.25}),
        ({"train_interval": 5}, {"steps_per_update": 5}),
        ({"num_update": 2}, {"steps_per_update": 0.5}),
        (
            {"train_interval": 6, "num_update": 2, "reward_signal_num_update": 3},
            {"steps_per_update": 3, "reward_signal_steps_per_update": 2},
        ),
        ({"steps_per_update": 7, "num_update": 2}, {"steps_per_update": 7}),
    ],
)
def test_steps_per_update_are_the_interval_divided_by_the_updates(
    keys: dict[str, Any], expected: dict[str, float]
) -> None:
    flat = upgrade(block(trainer="sac", **keys))
    sections = upgrade({"behaviors": {"A": {"trainer_type": "sac", "hyperparameters": keys}}})

    assert flat.document["behaviors"]["A"]["hyperparameters"] == expected
    assert sections.document["behaviors"]["A"]["hyperparameters"] == expected
    told = {*changed(flat), *dropped(flat)}
    assert {f"A.{key}" for key in keys if key != "steps_per_update"} <= told


@pytest.mark.parametrize(
    ("beside", "keys", "expected"),
    [
        (
            {"reward_signal_num_update": 3},
            {"train_interval": 6, "num_update": 2},
            {"steps_per_update": 3, "reward_signal_steps_per_update": 2},
        ),
        ({"reward_signal_num_update": 4}, {}, {"reward_signal_steps_per_update": 0.25}),
        ({"reward_signal_num_update": 1}, {"train_interval": 5}, {"steps_per_update": 5}),
        ({"reward_signal_steps_per_update": 7}, {"steps_per_update": 3}, {"steps_per_update": 3}),
        ({"reward_signal_num_update": 2}, {"reward_signal_steps_per_update": 9}, {"reward_signal_steps_per_update": 9}),
        (
            {"reward_signal_num_update": 2},
            {"reward_signal_num_update": 9, "train_interval": 4, "num_update": 1},
            {"steps_per_update": 4},
        ),
    ],
)
def test_updates_beside_the_reward_signals_become_hyperparameters(
    beside: dict[str, float], keys: dict[str, float], expected: dict[str, float]
) -> None:
    signals = {"extrinsic": {"gamma": 0.9}}
    flat = upgrade(block(trainer="sac", reward_signals=beside | signals, **keys))
    sections = upgrade(
        {"behaviors": {"A": {"trainer_type": "sac", "hyperparameters": keys, "reward_signals": beside | signals}}}
    )

    for done, path in ((flat, "A"), (sections, "behaviors.A")):
        behavior = done.document["behaviors"]["A"]
        assert behavior["reward_signals"] == signals
        assert behavior["hyperparameters"].items() >= expected.items()
        assert {f"{path}.reward_signals.{key}" for key in beside} <= {*changed(done), *dropped(done)}
        config = resolve(done.document).behaviors["A"]
        assert isinstance(config, SACConfig)
        by_signals = behavior["hyperparameters"]["reward_signal_steps_per_update"]
        assert config.hyperparameters.reward_signal_steps_per_update == by_signals


def test_an_old_file_with_updates_beside_its_reward_signals_becomes_one_that_resolves() -> None:
    """Of `default`, and of Walker, whose own signals replace those of `default` and whose interval is 2."""
    text = OLD["sac_trainer_config"].replace(
        "    reward_signals:\n", "    reward_signals:\n        reward_signal_num_update: 4\n"
    )
    done = upgrade(text)

    config = resolve(done.document, local=True)

    walker, hallway = config.behaviors["Walker"], config.behaviors["Hallway"]
    assert isinstance(walker, SACConfig)
    assert isinstance(hallway, SACConfig)
    assert walker.hyperparameters.steps_per_update == 2
    assert walker.hyperparameters.reward_signal_steps_per_update == 0.5
    assert hallway.hyperparameters.steps_per_update == 1
    assert hallway.hyperparameters.reward_signal_steps_per_update == 0.25
    key = "hyperparameters.reward_signal_steps_per_update"
    assert changed(done)["Walker.reward_signals.reward_signal_num_update"] == f"behaviors.Walker.{key}"
    assert changed(done)["default.reward_signals.reward_signal_num_update"] == f"behaviors.*.{key}"


@pytest.mark.parametrize("key", ["reward_signal_num_update", "reward_signal_steps_per_update"])
def test_updates_of_the_reward_signals_are_dropped_where_the_trainer_is_not_sac(key: str) -> None:
    signals = {key: 2, "extrinsic": {"gamma": 0.9}}
    flat = upgrade(block(reward_signals=signals))
    sections = upgrade({"behaviors": {"A": {"trainer_type": "ppo", "reward_signals": signals}}})

    assert dropped(flat) == {f"A.reward_signals.{key}"}
    assert dropped(sections) == {f"behaviors.A.reward_signals.{key}"}
    for done in (flat, sections):
        assert done.document["behaviors"]["A"]["reward_signals"] == {"extrinsic": {"gamma": 0.9}}
        assert "hyperparameters" not in done.document["behaviors"]["A"]
        resolve(done.document)


def test_no_update_of_the_reward_signals_at_all_is_refused_with_its_path() -> None:
    with pytest.raises(InvalidConfig) as caught:
        upgrade(block(trainer="sac", reward_signals={"reward_signal_num_update": 0, "extrinsic": {}}))

    assert [problem.path for problem in caught.value.problems] == ["A.reward_signals.reward_signal_num_update"]


def test_no_update_at_all_is_refused() -> None:
    with pytest.raises(InvalidConfig) as caught:
        upgrade(block(trainer="sac", train_interval=2, num_update=0))

    assert [problem.path for problem in caught.value.problems] == ["A.num_update"]


def test_former_names_become_those_of_today() -> None:
    done = upgrade(
        block(
            pretraining={"demo_path": "x.demo", "strength": 0.5, "steps": 10},
            vis_encode_type="default",
            self_play={"play_against_current_self_ratio": 0.7, "window": 3},
            reward_signals={"curiosity": {"encoding_size": 64}},
        )
    )

    curiosity = "reward_signals.curiosity"
    behavior = done.document["behaviors"]["A"]
    assert behavior["behavioral_cloning"] == {"demo_path": "x.demo", "strength": 0.5, "steps": 10}
    assert behavior["network_settings"]["vis_encode_type"] == "simple"
    assert behavior["self_play"] == {"play_against_latest_model_ratio": 0.7, "window": 3}
    assert behavior["reward_signals"] == {"curiosity": {"network_settings": {"hidden_units": 64}}}
    assert (
        changed(done).items()
        >= {
            "A.pretraining": "behaviors.A.behavioral_cloning",
            "A.vis_encode_type": "behaviors.A.network_settings.vis_encode_type",
            "A.self_play.play_against_current_self_ratio": "behaviors.A.self_play.play_against_latest_model_ratio",
            f"A.{curiosity}.encoding_size": f"behaviors.A.{curiosity}.network_settings.hidden_units",
        }.items()
    )
    resolve(done.document, local=True)


def test_curiosity_before_reward_signals_becomes_one() -> None:
    done = upgrade(block(gamma=0.9, use_curiosity=True, curiosity_strength=0.02, curiosity_enc_size=32))

    assert done.document["behaviors"]["A"]["reward_signals"] == {
        "extrinsic": {"gamma": 0.9},
        "curiosity": {"strength": 0.02, "network_settings": {"hidden_units": 32}},
    }


def test_online_cloning_becomes_a_clone_run_that_asks_for_recordings() -> None:
    done = upgrade({"Student": {"trainer": "online_bc", "brain_to_imitate": "Teacher", "max_steps": 100}})

    assert done.document == {"behaviors": {"Student": {"trainer_type": "clone", "max_steps": 100}}}
    (drop,) = done.dropped
    assert (drop.path, drop.value) == ("Student.brain_to_imitate", "Teacher")
    assert "ludus demonstration upload" in drop.why
    with pytest.raises(InvalidConfig, match="ludus demonstration upload"):
        resolve(done.document)


def test_what_is_unknown_is_reported() -> None:
    done = upgrade(
        block(
            favourite_colour="red",
            tau=0.1,
            reward_signals={"extrinsic": {"use_terminal_states": True}},
            self_play={"league": 3},
        )
    )

    assert dropped(done) == {
        "A.favourite_colour",
        "A.tau",
        "A.reward_signals.extrinsic.use_terminal_states",
        "A.self_play.league",
    }
    resolve(done.document)


def test_a_memory_without_numbers_has_those_of_today() -> None:
    done = upgrade({"A": {"trainer": "ppo", "use_recurrent": True}})

    assert done.document["behaviors"]["A"]["network_settings"] == {"memory": {}}


def test_a_behavior_without_a_trainer_is_trained_by_ppo_and_the_report_says_so() -> None:
    done = upgrade({"A": {"use_recurrent": False}})

    assert done.document["behaviors"]["A"]["trainer_type"] == "ppo"
    assert changed(done)["A"] == "behaviors.A.trainer_type"


def test_a_default_without_behaviors_becomes_the_template() -> None:
    done = upgrade({"default": {"trainer": "sac", "batch_size": 64}})

    assert done.document == {"default_settings": {"trainer_type": "sac", "hyperparameters": {"batch_size": 64}}}
    assert resolve(done.text).behaviors == {}


def test_steps_of_2019_were_those_of_the_simulation_and_the_report_says_so() -> None:
    done = upgrade({"A": {"trainer": "sac", "max_steps": 5e4, "summary_freq": 1000, "buffer_init_steps": 500}})

    told = [change.path for change in done.changes if "multiply it by the number of agents" in change.why]
    assert told == ["*.buffer_init_steps", "*.max_steps", "*.summary_freq"]


def test_intervals_of_2019_counted_steps_of_the_simulation_and_the_report_says_so() -> None:
    upgraded = upgrade("Ball: {trainer: sac, train_interval: 64, num_update: 2}")
    assert upgraded.document["behaviors"]["Ball"]["hyperparameters"]["steps_per_update"] == 32
    reasons = {change.path: change.why for change in upgraded.changes}
    assert "multiply it by the number of agents" in reasons["Ball.train_interval"]
    assert "multiply it by the number of agents" not in reasons["Ball.num_update"]


@pytest.mark.parametrize(
    "text", ["A: {trainer: sac, tau: 0.1, tau: 0.1}", '{"A": {"trainer": "sac", "tau": 0.1, "tau": 0.1}}']
)
def test_a_key_that_stands_twice_with_one_value_is_reported(text: str) -> None:
    upgraded = upgrade(text)
    assert upgraded.document["behaviors"]["A"]["hyperparameters"]["tau"] == 0.1
    assert [(drop.path, drop.value, drop.why) for drop in upgraded.dropped] == [
        ("A.tau", 0.1, "stands twice, with the same value")
    ]


def test_a_section_that_stands_twice_is_compared_to_its_last_value() -> None:
    section = "{hidden_units: 128, num_layers: 2, vis_encode_type: simple_simple_simple, deterministic: %s}"
    with pytest.raises(InvalidConfig, match="with different values"):
        upgrade(f"behaviors: {{A: {{network_settings: {section % 1}, network_settings: {section % 'true'}}}}}")


@pytest.mark.parametrize("other", ["0.2", "true", "1"])
def test_a_key_that_stands_twice_with_two_values_is_refused(other: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        upgrade(f"A: {{trainer: sac, tau: 1.0, tau: {other}}}")
    assert [(problem.path, problem.code) for problem in refused.value.problems] == [("A", "duplicate_key")]


def test_a_file_with_the_template_alone_is_of_today() -> None:
    document = {"default_settings": {"trainer_type": "ppo", "max_steps": 400}}

    assert upgrade(document).unchanged
    assert resolve(document).behavior("Ball") == resolve(document).default_settings


def test_what_older_releases_had_in_the_template_is_repaired_too() -> None:
    done = upgrade({"default_settings": {"trainer_type": "ppo", "network_settings": {"vis_encode_type": "default"}}})

    assert done.document["default_settings"]["network_settings"] == {"vis_encode_type": "simple"}


def test_the_new_text_shares_nothing_between_behaviors() -> None:
    done = upgrade({"default": {"trainer": "ppo", "reward_signals": {"extrinsic": {"gamma": 0.9}}}, "A": {}, "B": {}})

    assert "&" not in done.text
    assert "*" not in done.text


# Environment parameters


def test_samplers_beside_the_trainers_become_parameters() -> None:
    samplers = {
        "resampling-interval": 5000,
        "mass": {"sampler-type": "uniform", "min_value": 0.5, "max_value": 10},
        "scale": {"sampler-type": "multirange_uniform", "intervals": [[1, 2], [3, 4]]},
        "gravity": {"sampler-type": "gaussian", "mean": 9, "st_dev": 1, "skew": 2},
    }

    done = upgrade(block(), sampler=samplers)

    assert done.document["environment_parameters"] == {
        "mass": {"sampler_type": "uniform", "sampler_parameters": {"min_value": 0.5, "max_value": 10}},
        "scale": {"sampler_type": "multirangeuniform", "sampler_parameters": {"intervals": [[1, 2], [3, 4]]}},
        "gravity": {"sampler_type": "gaussian", "sampler_parameters": {"mean": 9, "st_dev": 1}},
    }
    assert dropped(done) >= {"sampler.resampling-interval", "sampler.gravity.skew"}
    resolve(done.document)


def test_sections_of_0_17_become_parameters_and_all_others_stay() -> None:
    curriculum = {"A": {"measure": "reward", "thresholds": [0.5], "parameters": {"mass": [1, 2], "height": [3, 4]}}}
    document = {
        "behaviors": {"A": {"trainer_type": "ppo"}},
        "env_settings": {"num_areas": 3},
        "parameter_randomization": {
            "resampling-interval": 5,
            "mass": {"sampler_type": "uniform", "min_value": 1, "max_value": 2},
        },
        "curriculum": curriculum,
        "debug": True,
    }

    done = upgrade(document)

    config = resolve(done.document)
    assert (config.env_settings.num_areas, config.debug) == (3, True)
    assert list(done.document["environment_parameters"]) == ["mass", "height"]
    assert done.document["environment_parameters"]["height"] == {
        "curriculum": [
            {
                "name": "Lesson0",
                "completion_criteria": {
                    "measure": "reward",
                    "behavior": "A",
                    "signal_smoothing": False,
                    "min_lesson_length": 1,
                    "threshold": 0.5,
                },
                "value": 3,
            },
            {"name": "Lesson1", "value": 4},
        ]
    }
    # A sampler counts before a curriculum, as in ML-Agents.
    assert dropped(done) == {"parameter_randomization.resampling-interval", "curriculum.mass"}


def test_lessons_as_the_upgrade_script_writes_them_are_repaired() -> None:
    first = {"completion_criteria": {"behavior": "A", "threshold": 1}, "value": 1}
    document = {
        "behaviors": {"A": {}},
        "environment_parameters": {"p": {"curriculum": [{"Lesson0": first}, {"Lesson1": {"value": 2}}]}},
    }

    done = upgrade(document)

    assert [lesson.name for lesson in resolve(done.document).lessons()["p"]] == ["Lesson0", "Lesson1"]


def test_a_curriculum_that_names_no_behavior_is_for_the_only_one() -> None:
    curriculum = '{"measure": "progress", "thresholds": [0.5], "parameters": {"p": [1, 2]}}'

    done = upgrade(block(), curriculum=curriculum)

    criteria = resolve(done.document).lessons()["p"][0].completion_criteria
    assert criteria is not None
    assert criteria.behavior == "A"


# What can't be understood


@pytest.mark.parametrize(
    ("document", "beside", "path", "code"),
    [
        ({"x": 1}, {}, "", "missing"),
        ({"A": {"trainer": "a3c"}}, {}, "A.trainer", "invalid_value"),
        ({"A": {"trainer": "ppo"}, "B": 3}, {}, "B", "wrong_type"),
        ({"mass": {"sampler-type": "uniform"}}, {}, "", "old_format"),
        ({"measure": "reward", "thresholds": [], "parameters": {}}, {}, "", "old_format"),
        (block(), {"sampler": {"mass": {"min_value": 1}}}, "sampler.mass", "missing"),
        (block(), {"sampler": {"mass": 3}}, "sampler.mass", "wrong_type"),
        (block(), {"curriculum": {"A": {"measure": "reward"}}}, "curriculum.A", "missing"),
        (
            block(),
            {"curriculum": {"A": {"measure": "reward", "thresholds": [1], "parameters": {"p": [1]}}}},
            "curriculum.A.parameters.p",
            "wrong_type",
        ),
        (
            block(),
            {"curriculum": {"A": {"measure": "reward", "thresholds": 1, "parameters": {"p": [1]}}}},
            "curriculum.A.thresholds",
            "wrong_type",
        ),
        (
            {**block(), "B": {"trainer": "ppo"}},
            {"curriculum": {"measure": "reward", "thresholds": [], "parameters": {}}},
            "curriculum",
            "missing",
        ),
        ("", {}, "", "empty_document"),
    ],
)
def test_what_cannot_be_understood_is_refused_where_it_is(
    document: Any, beside: dict[str, Any], path: str, code: str
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        upgrade(document, **beside)

    assert [(problem.path, problem.code) for problem in caught.value.problems] == [(path, code)]
