"""What a configuration asks for and a trainer can't give: it says so, or does not begin."""

from pathlib import Path
from typing import Any

import pytest

from ludus.spec import BehaviorSpec
from tests.worker.rollouts import make_spec
from tests.worker.trainer.superior import Superior
from tests.worker.trainer.test_clone import show
from worker.link import Job
from worker.trainer.loop import Trainer

PINK = {"trainer_type": "sac", "hyperparameters": {"exploration_noise": "pink"}}


def make_trainer(superior: Superior, folder: Path, behavior: dict[str, Any], **torch_settings: Any) -> Trainer:
    config = {"behaviors": {"Echo": behavior}, "torch_settings": torch_settings}
    return Trainer(Job(run_id="run", epoch=1, config=config, seed=1, scratch=str(folder)), superior, [])


@pytest.mark.parametrize("bf16", [True, False])
def test_bf16_on_a_cpu_is_said_to_have_no_effect(tmp_path: Path, *, bf16: bool) -> None:
    clone = {"trainer_type": "clone", "demo_path": show(tmp_path / "shown.npz")}
    superior = Superior(cancels=True)

    make_trainer(superior, tmp_path, clone, device="cpu", bf16=bf16).run()

    event = superior.events().get("bf16_not_used")
    assert (event is not None) == bf16
    assert event is None or event.message.startswith("torch_settings.bf16 has no effect on cpu")


@pytest.mark.parametrize(
    ("behavior", "spec", "told"),
    [
        (PINK, make_spec(branches=(3,)), True),
        (PINK, make_spec(branches=(3,), continuous=1), False),
        ({"trainer_type": "sac"}, make_spec(branches=(3,)), False),
    ],
    ids=["in vain", "hybrid", "white"],
)
def test_pink_noise_without_continuous_actions_is_said_to_have_no_effect(
    tmp_path: Path, behavior: dict[str, Any], spec: BehaviorSpec, *, told: bool
) -> None:
    superior = Superior(cancels=True)
    trainer = make_trainer(superior, tmp_path, behavior, device="cpu")

    trainer._admission.admit(BehaviorSpec("Echo", spec.observations, spec.actions))

    event = superior.events().get("exploration_noise_not_used")
    assert (event is not None) == told
    assert event is None or event.message == (
        "behaviors.Echo.hyperparameters.exploration_noise: pink has no effect, since Echo has no continuous actions; "
        "remove it"
    )
    assert "behavior_admitted" in superior.events()
    trainer._pool.close("collector_closing", "the test is over", rejoin=False)
