"""GAIL tells the expert from the policy, smoothly, and pays for passing; VAIL's price follows its bound."""

from typing import Any

import pytest
import torch

from ludus.config.rewards import GAILConfig
from ludus.protocol.spec import BehaviorSpec
from tests.worker.learning.rewards.steps import CPU, Expert, normals, random_transitions, single_steps
from tests.worker.rollouts import make_spec
from worker.experience.transitions import Transitions
from worker.learning.rewards.gail import BOTTLENECK, GAILReward

SPEC = make_spec(observations=(2,), continuous=1)


def make_gail(
    expert: Transitions,
    spec: BehaviorSpec = SPEC,
    *,
    name: str = "gail",
    seed: int = 1,
    network: Any = None,
    **config: Any,
) -> GAILReward:
    settings = {"hidden_units": 32, "num_layers": 1, "vis_encode_type": "fully_connected", **(network or {})}
    section = GAILConfig.model_validate(
        {"demo_path": "there", "learning_rate": 3e-3, "network_settings": settings, **config}
    )
    return GAILReward(section, spec, CPU, torch.Generator().manual_seed(seed), Expert(expert), name)


def gaussian_steps(mean: float, seed: int, action: float = 0.0) -> Transitions:
    return single_steps(normals(256, 2, mean=mean, seed=seed), continuous=torch.full((256, 1), action))


def floats(measured: dict[str, torch.Tensor]) -> dict[str, float]:
    return {name: float(value) for name, value in measured.items()}


@pytest.mark.parametrize(("use_vail", "sure"), [(False, 0.75), (True, 0.57)])
def test_two_gaussians_are_told_apart(use_vail: bool, sure: float) -> None:
    gail = make_gail(gaussian_steps(1.0, seed=1), use_vail=use_vail, learning_rate=1e-2)
    measured = [floats(gail.update(gaussian_steps(-1.0, seed=seed))) for seed in range(2, 50)]

    assert measured[0]["Policy/GAIL Expert Estimate"] == pytest.approx(0.5, abs=0.1)
    assert measured[-1]["Policy/GAIL Expert Estimate"] > sure
    assert measured[-1]["Policy/GAIL Policy Estimate"] < 1 - sure
    passing, caught = gail.evaluate(gaussian_steps(1.0, seed=999)), gail.evaluate(gaussian_steps(-1.0, seed=998))
    assert float(passing.mean()) > 2 * float(caught.mean())
    assert float(caught.min()) >= 0.0


def test_a_policy_like_the_expert_cannot_be_told() -> None:
    gail = make_gail(gaussian_steps(1.0, seed=1), learning_rate=1e-2)
    for seed in range(2, 40):
        measured = floats(gail.update(gaussian_steps(1.0, seed=seed)))

    # It is not flat, though: the penalty wants a slope of 1 everywhere.
    assert measured["Policy/GAIL Expert Estimate"] == pytest.approx(measured["Policy/GAIL Policy Estimate"], abs=0.1)


@pytest.mark.parametrize("use_actions", [False, True])
def test_actions_count_only_where_they_are_asked_for(use_actions: bool) -> None:
    gail = make_gail(gaussian_steps(0.0, seed=1, action=0.8), use_actions=use_actions, learning_rate=2e-2)
    for seed in range(2, 50):
        measured = floats(gail.update(gaussian_steps(0.0, seed=seed, action=-0.8)))

    told = measured["Policy/GAIL Expert Estimate"] - measured["Policy/GAIL Policy Estimate"]
    assert (told > 0.5) if use_actions else (told < 0.1)


def test_the_end_of_the_task_counts_with_actions() -> None:
    def steps(seed: int, *, terminated: bool) -> Transitions:
        return single_steps(
            normals(256, 2, seed=seed), continuous=torch.zeros(256, 1), terminated=torch.full((256,), terminated)
        )

    gail = make_gail(steps(1, terminated=False), use_actions=True, learning_rate=3e-2)
    for seed in range(2, 40):
        measured = floats(gail.update(steps(seed, terminated=True)))

    assert measured["Policy/GAIL Expert Estimate"] - measured["Policy/GAIL Policy Estimate"] > 0.5


def test_choices_are_judged_as_one_column_each() -> None:
    spec = make_spec(observations=(2,), continuous=1, branches=(2, 3))
    gail = make_gail(random_transitions(spec), spec, use_actions=True)
    steps = single_steps(
        torch.tensor([[5.0, 6.0]]),
        continuous=torch.tensor([[0.5]]),
        discrete=torch.tensor([[1, 2]]),
        terminated=torch.tensor([True]),
    )

    inputs = gail.network.inputs(steps)

    # Observation; then column, two choices, three choices, flag.
    assert [part.tolist() for part in inputs] == [[[5.0, 6.0]], [[0.5, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0]]]


def test_pictures_are_judged_as_they_are_seen() -> None:
    spec = make_spec(observations=(2, (1, 4, 4)), continuous=1)
    gail = make_gail(random_transitions(spec), spec)
    steps = random_transitions(spec, seed=2)

    vectors, pictures = gail.network.inputs(steps)

    assert vectors.shape == (64, 2)
    torch.testing.assert_close(pictures, steps.observations[1][steps.index].float() / 255)
    gail.update(steps)
    assert bool(gail.is_finite())


def test_gradient_penalty_is_on_all_inputs() -> None:
    """A linear discriminator before its sigmoid: D = s(w x), so |dD/dx| = s (1 - s) |w|, over every input."""
    spec = make_spec(observations=(2, (1, 4, 4)), continuous=1)
    gail = make_gail(random_transitions(spec), spec, use_actions=True)
    steps = random_transitions(spec, seed=2)
    seen: list[torch.Tensor] = []
    plain = gail.network.forward

    def linear(inputs: list[torch.Tensor], noise: torch.Tensor | None = None) -> Any:
        judged = plain(inputs, noise)
        total = torch.stack([part.flatten(1).sum(1) for part in inputs]).sum(0)
        seen.append(total)
        return judged._replace(logit=total)

    gail.network.forward = linear  # type: ignore[method-assign]
    inputs = gail.network.inputs(steps)
    with torch.enable_grad():
        penalty = gail.penalty(inputs, inputs)

    # 2 numbers of the vector, 16 pixels, 1 column and the flag: 20 slopes of 1 each, |w| = sqrt(20).
    estimate = seen[0].sigmoid()
    expected = ((estimate * (1 - estimate) * 20**0.5).square() + 1e-7).sqrt().sub(1).square().mean()
    torch.testing.assert_close(penalty.detach(), expected.detach())


def test_gradient_penalty_trains_the_slope_towards_one() -> None:
    # Expert and policy alike: only the penalty is left to learn. D's slope can't be more than a quarter of its logit's.
    gail = make_gail(gaussian_steps(0.0, seed=1), learning_rate=1e-2)
    measured = [floats(gail.update(gaussian_steps(0.0, seed=seed)))["Policy/GAIL Grad Mag Loss"] for seed in range(40)]

    assert measured[0] == pytest.approx(10.0, rel=0.1)  # 10 (0 - 1)^2: at first D is nearly flat
    assert measured[-1] < 0.8 * measured[0]


def test_beta_moves_as_it_is_defined() -> None:
    gail = make_gail(gaussian_steps(1.0, seed=1), use_vail=True, learning_rate=1e-2)
    beta = 0.0
    for seed in range(2, 20):
        measured = floats(gail.update(gaussian_steps(-1.0, seed=seed)))
        beta = max(0.0, beta + 5e-4 * (measured["Losses/GAIL KL Loss"] - 0.5))
        assert measured["Policy/GAIL Beta"] == pytest.approx(beta, rel=1e-4, abs=1e-8)

    assert beta > 0.0  # telling the two apart takes more than half a nat


def test_a_price_narrows_the_bottleneck() -> None:
    information = []
    for price in (0.0, 5.0):
        gail = make_gail(gaussian_steps(1.0, seed=1), use_vail=True, learning_rate=1e-2)
        for seed in range(2, 30):
            gail.network.beta.fill_(price)
            measured = floats(gail.update(gaussian_steps(-1.0, seed=seed)))
        information.append(measured["Losses/GAIL KL Loss"])

    assert information[1] < information[0] / 2


def test_rewards_pass_the_bottleneck_without_noise() -> None:
    gail = make_gail(gaussian_steps(1.0, seed=1), use_vail=True)
    steps = gaussian_steps(-1.0, seed=2)

    assert torch.equal(gail.evaluate(steps), gail.evaluate(steps))
    assert gail.network.sigma.shape == (BOTTLENECK,)


def test_what_a_gpu_saved_goes_on_on_a_cpu() -> None:
    def resumed(offset: int) -> dict[str, float]:
        gail = make_gail(gaussian_steps(1.0, seed=1), use_vail=True)
        state = gail.state_dict()
        # What torch.Generator("cuda").get_state() returns: its seed and how much was drawn, eight bytes each.
        state["generators"]["noise"] = torch.tensor([1234, offset]).view(torch.uint8)
        gail.load_state_dict(state)
        for seed in range(2, 5):
            measured = floats(gail.update(gaussian_steps(-1.0, seed=seed)))
        return measured

    assert resumed(400) == resumed(400)
    assert resumed(400) != resumed(800), "noise goes on, it does not begin again"


def test_a_second_signal_has_names_of_its_own() -> None:
    steps = gaussian_steps(1.0, seed=1)

    assert "Losses/GAIL 2 Loss" in make_gail(steps, name="gail_2").update(steps)


def test_statistics_are_the_experts() -> None:
    gail = make_gail(gaussian_steps(4.0, seed=1), network={"normalize": True})
    normalizer = gail.network.body.normalizer
    assert normalizer is not None

    for seed in range(20):
        gail.update(gaussian_steps(-4.0, seed=seed))

    assert normalizer.mean.tolist() == pytest.approx([4.0, 4.0], abs=0.2)


def test_what_ignore_done_changes_is_no_part_of_the_state() -> None:
    one, other = (make_gail(gaussian_steps(1.0, seed=1), ignore_done=choice) for choice in (False, True))
    one.update(gaussian_steps(-1.0, seed=2))

    other.load_state_dict(one.state_dict())

    assert other.ignores_termination
    torch.testing.assert_close(other.evaluate(gaussian_steps(0.0, seed=3)), one.evaluate(gaussian_steps(0.0, seed=3)))
