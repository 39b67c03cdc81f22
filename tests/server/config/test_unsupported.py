"""What no run can do yet is refused where a run would be made from it, and resolves all the same."""

from typing import Any

import pytest

from server.config.resolution import resolve
from server.config.rules import refuse_unsupported, unsupported
from server.kit.errors import InvalidConfig
from tests.server.config.checks import behavior

LESSONS = [{"name": "low", "value": 1, "completion_criteria": {"behavior": "A"}}, {"name": "high", "value": 2}]


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (behavior() | {"env_settings": {"env_path": "game"}}, "env_settings.env_path"),
        (behavior() | {"checkpoint_settings": {"initialize_from": "run"}}, "checkpoint_settings.initialize_from"),
        (behavior() | {"checkpoint_settings": {"resume": True}}, "checkpoint_settings.resume"),
        (behavior() | {"checkpoint_settings": {"load_model": True}}, "checkpoint_settings.load_model"),
        (
            behavior(trainer_type="clone", demo_path="a.demo") | {"checkpoint_settings": {"inference": True}},
            "checkpoint_settings.inference",
        ),
        (behavior() | {"checkpoint_settings": {"results_dir": "/x"}}, "checkpoint_settings.results_dir"),
    ],
)
def test_what_no_run_can_do_yet_is_refused_by_name(document: dict[str, Any], path: str) -> None:
    config = resolve(document, local=True)

    (problem,) = unsupported(config)

    assert (problem.path, problem.code) == (path, "unsupported")
    assert "does not support it yet" in problem.message
    with pytest.raises(InvalidConfig):
        refuse_unsupported(config)


def test_what_runs_can_do_is_not_refused() -> None:
    document = behavior(reward_signals={"curiosity": {}}, self_play={}) | {
        "default_settings": {"self_play": {}},
        "env_settings": {"num_envs": 4, "num_areas": 2, "seed": 3},
        "engine_settings": {"no_graphics": True, "time_scale": 1},
        "environment_parameters": {
            "number": 1,
            "drawn": {"sampler_type": "uniform", "sampler_parameters": {}},
            "alone": {"curriculum": [LESSONS[1]]},
        },
        "checkpoint_settings": {"run_id": "x", "force": True, "inference": True, "resume_from": f"ckpt_{'0' * 26}"},
        "debug": True,
    }

    refuse_unsupported(resolve(document))
