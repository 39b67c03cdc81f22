"""Checkpoints of ML-Agents in our networks: the same answers, the same moments, nothing skipped."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ludus.config.behavior import CloneConfig
from server.config.resolution import resolve
from tests.worker.mlagents.cases import NAMES, STEPS, Case
from tests.worker.mlagents.test_networks import check_policy, generator, load
from worker.learning.networks.actor import Actor
from worker.mlagents.algorithms import LISTED, Misfit, translate


@pytest.mark.parametrize("name", NAMES)
def test_moments_go_where_their_weights_go(tmp_path: Path, name: str) -> None:
    case = Case(name)

    state = translate(case.file(tmp_path), case.config, case.spec).state

    weights = (
        dict(state["model"])
        if "model" in state
        else {f"{part}.{key}": value for part in ("actor", "critics") for key, value in state[part].items()}
    )
    optimizer = state["optimizer"]
    assert float(optimizer["steps"]) == STEPS
    assert optimizer["first"].keys() == optimizer["second"].keys()
    if case.config.trainer_type == "sac":
        branches = len(case.spec.actions.discrete_branches)
        expected = [*range(1, branches + 1), *([9.0] if case.spec.actions.continuous_size else [])]
        assert optimizer["first"].pop("log_coefficients").tolist() == expected
    assert len(optimizer["first"]) > 4
    for key, moment in optimizer["first"].items():
        if ".target." not in key:  # follows V, and is no parameter of any optimizer
            torch.testing.assert_close(moment, weights[key])
            torch.testing.assert_close(optimizer["second"][key], 2.0 * moment)


def test_statistics_are_those_of_all_vectors_as_sums(tmp_path: Path) -> None:
    case = Case("sac-signals")
    actor = Actor(case.spec, case.config.network_settings, generator(), head="squashed")
    file = case.file(tmp_path)

    load(actor, translate(file, case.config, case.spec).state["actor"])

    normalizer = actor.normalizer
    assert normalizer is not None
    prefix = "Policy/network_body.observation_encoder.processors"
    squares = torch.cat([file.tensors[f"{prefix}.{index}.normalizer.running_variance"] for index in (0, 1)])
    assert float(normalizer.count) == 500.0
    torch.testing.assert_close(normalizer.squares, squares.double())
    assert 0.5 < float(normalizer.std().mean()) < 2.0, "a sum of squares divided by the count is a variance"


def test_a_clone_run_takes_the_policy_alone(tmp_path: Path) -> None:
    case = Case("ppo-memory-signals")
    document = {
        "trainer_type": "clone",
        "demonstrations": [f"dem_{'0' * 26}"],
        "network_settings": case.config.network_settings.model_dump(),
    }
    config = resolve({"behaviors": {"A": document}}).behaviors["A"]
    assert isinstance(config, CloneConfig)
    actor = Actor(case.spec, config.network_settings, generator())

    load(actor, translate(case.file(tmp_path), config, case.spec).state["model"])

    check_policy(case, actor)


def test_what_a_file_has_nothing_for_is_named(tmp_path: Path) -> None:
    sac, ppo = Case("sac-signals"), Case("ppo-memory-signals")

    of_sac = translate(sac.file(tmp_path), sac.config, sac.spec).fresh
    of_ppo = translate(ppo.file(tmp_path), ppo.config, ppo.spec).fresh

    assert {"the entropy coefficients", "the replay buffer", "the optimizer of gail"} <= set(of_sac)
    assert set(of_ppo) == {"the optimizer of curiosity", "the optimizer of rnd", "the optimizer of gail"}


# What does not fit ----------------------------------------------------------------------------------------------------


def refusal(case: Case, folder: Path, contents: dict[str, Any] | None = None, **changes: Any) -> tuple[str, ...]:
    with pytest.raises(Misfit) as caught:
        translate(case.file(folder, contents), case.configured(**changes), case.spec)
    return caught.value.problems


def test_missing_unexpected_and_misshapen_tensors_are_each_listed(tmp_path: Path) -> None:
    case = Case("ppo-goal-not-conditioning")
    contents = case.contents()
    policy = contents["Policy"]
    del policy["action_model._continuous_distribution.mu.bias"]
    policy["network_body._body_endoder.seq_layers.9.weight"] = torch.zeros(2, 3)
    policy["network_body._body_endoder.seq_layers.0.weight"] = torch.zeros(8, 4)

    assert set(refusal(case, tmp_path, contents)) == {
        "missing Policy/action_model._continuous_distribution.mu.bias (2)",
        "unexpected Policy/network_body._body_endoder.seq_layers.9.weight (2x3)",
        "Policy/network_body._body_endoder.seq_layers.0.weight is 8x4, needed is 8x5",
    }


def test_other_settings_are_refused_with_the_layers_that_they_change(tmp_path: Path) -> None:
    case = Case("ppo-goal-not-conditioning")
    network = {"hidden_units": 8, "num_layers": 2, "goal_conditioning_type": "none"}

    wider = refusal(case, tmp_path, network_settings={**network, "hidden_units": 12})
    deeper = refusal(case, tmp_path, network_settings={**network, "num_layers": 3})
    normalized = refusal(case, tmp_path, network_settings={**network, "normalize": True})
    remembering = refusal(case, tmp_path, network_settings={**network, "memory": {"memory_size": 4}, "num_layers": 2})

    assert "Policy/network_body._body_endoder.seq_layers.0.weight is 8x5, needed is 12x5" in wider
    assert "missing Optimizer:critic/network_body._body_endoder.seq_layers.4.weight (8x8)" in deeper
    assert "missing Policy/network_body.observation_encoder.processors.0.normalizer.running_mean (2)" in normalized
    assert "missing Policy/network_body.lstm.lstm.weight_ih_l0 (8x8)" in remembering


def test_other_reward_signals_are_refused_by_name(tmp_path: Path) -> None:
    case = Case("ppo-goal-not-conditioning")
    with_signals = Case("sac-signals")

    added = refusal(case, tmp_path, reward_signals={"extrinsic": {}, "curiosity": {}})
    dropped = refusal(with_signals, tmp_path, reward_signals={"extrinsic": {}})

    assert "missing Optimizer:critic/value_heads.value_heads.curiosity.weight (1x8)" in added
    assert any(problem.startswith("missing Module:Curiosity/_state_encoder") for problem in added)
    assert any(problem.startswith("unexpected Module:RND-pred/") for problem in dropped)
    assert any(
        problem.startswith("unexpected Optimizer:value_network/value_heads.value_heads.rnd") for problem in dropped
    )


def test_another_trainers_checkpoint_is_refused(tmp_path: Path) -> None:
    case = Case("ppo-goal-not-conditioning")

    problems = refusal(case, tmp_path, trainer_type="sac")

    assert "missing Policy/action_model._continuous_distribution.log_sigma.weight (2x8)" in problems
    assert any(problem.startswith("missing Optimizer:q_network/q1_network.network_body") for problem in problems)
    assert any(problem.startswith("unexpected Optimizer:critic/network_body") for problem in problems)


def test_a_long_list_is_cut_and_counted(tmp_path: Path) -> None:
    case = Case("ppo-everything")
    with pytest.raises(Misfit) as caught:
        translate(case.file(tmp_path), case.configured(trainer_type="poca"), case.spec)

    error = caught.value
    assert len(error.problems) > LISTED
    assert str(error).count("; ") == LISTED
    assert str(error).endswith(f"and {len(error.problems) - LISTED} more")


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    case = Case("ppo-goal-not-conditioning")
    contents = case.contents()
    contents["Policy"]["action_model._continuous_distribution.mu.bias"][0] = torch.nan

    assert refusal(case, tmp_path, contents) == (
        "Policy/action_model._continuous_distribution.mu.bias has values that are no finite numbers",
    )


def test_an_activation_that_ml_agents_does_not_have_is_refused(tmp_path: Path) -> None:
    case = Case("ppo-goal-not-conditioning")
    network = {"hidden_units": 8, "goal_conditioning_type": "none", "activation": "tanh"}

    (problem,) = refusal(case, tmp_path, network_settings=network)

    assert "tanh" in problem


def test_a_critic_that_sees_more_than_its_policy_is_refused(tmp_path: Path) -> None:
    case = Case("ppo-goal-not-conditioning")
    network = {"hidden_units": 8, "goal_conditioning_type": "none", "privileged_observations": ["state"]}

    (problem,) = refusal(case, tmp_path, network_settings=network)

    assert "no network_settings.privileged_observations; remove the key" in problem


@pytest.mark.parametrize("spoil", ["missing", "fewer parameters", "misshapen", "not finite", "nonsense"])
def test_an_optimizer_that_does_not_fit_begins_anew_and_is_named(tmp_path: Path, spoil: str) -> None:
    case = Case("ppo-goal-not-conditioning")
    contents = case.contents()
    adam = contents["Optimizer:value_optimizer"]
    index = next(iter(adam["state"]))
    match spoil:
        case "missing":
            del contents["Optimizer:value_optimizer"]
        case "fewer parameters":
            adam["param_groups"][0]["params"].pop()
        case "misshapen":
            adam["state"][index]["exp_avg"] = torch.zeros(1, 1, 1)
        case "not finite":
            adam["state"][index]["exp_avg_sq"].view(-1)[0] = torch.inf
        case "nonsense":
            adam["state"] = {"a": 3}

    translated = translate(case.file(tmp_path, contents), case.config, case.spec)

    assert translated.fresh == ("the optimizer",)
    assert "optimizer" not in translated.state
