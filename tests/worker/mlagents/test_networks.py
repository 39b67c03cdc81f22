"""Networks answer as those of ML-Agents did whose weights they took over."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.worker.mlagents.cases import MATES, NAMES, ROWS, Case, remembered
from worker.learning.fast.adam import FlatAdam
from worker.learning.functional.prediction import flat_actions
from worker.learning.networks.actor import Actor
from worker.learning.networks.actor_critic import ActorCritic
from worker.learning.networks.multi_agent import TeamCritic
from worker.learning.networks.soft_actor_critic import build_critics
from worker.learning.rewards.curiosity import CuriosityNetworks
from worker.learning.rewards.gail import Discriminator
from worker.learning.rewards.rnd import RNDNetworks
from worker.mlagents.algorithms import translate

FRESH = ("updated", "beta")
"""Buffers that a checkpoint of ML-Agents may lack: whether curiosity has learned, and the price of VAIL."""


def load(module: nn.Module, state: dict[str, Tensor]) -> None:
    """Load a state in which nothing but what is empty, or is in no file, may be missing."""
    empty = {name for name, tensor in module.state_dict().items() if not tensor.numel()}
    missing, unexpected = module.load_state_dict(state, strict=False)
    assert set(missing) <= {*empty, *FRESH}
    assert not unexpected


def close(ours: Tensor, theirs: Any) -> None:
    np.testing.assert_allclose(ours.detach().numpy(), theirs, atol=1e-5, rtol=1e-5)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def check_policy(case: Case, actor: Actor) -> None:
    head, after = actor(actor.encode(case.observations()), remembered("memory", actor.memory_size))
    close(head, case.answers["policy"])
    if after is not None:
        close(after, case.answers["policy memory"])


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("ppo")])
def test_policy_and_values_of_ppo_answer_as_they_did_in_ml_agents(tmp_path: Path, name: str) -> None:
    case = Case(name)
    shared = case.config.hyperparameters.shared_critic
    model = ActorCritic(
        case.spec,
        case.config.network_settings,
        signals=len(case.config.reward_signals.active()),
        shared_critic=shared,
        generator=generator(),
    )

    load(model, translate(case.file(tmp_path), case.config, case.spec).state["model"])

    check_policy(case, model.actor)
    memory = remembered("memory" if shared else "critic memory", model.memory_size)
    values, _ = model.values(model.actor.encode(case.observations()), memory)
    close(values, case.answers["values"][:, case.columns])


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("sac")])
def test_policy_and_critics_of_sac_answer_as_they_did_in_ml_agents(tmp_path: Path, name: str) -> None:
    case = Case(name)
    actor = Actor(case.spec, case.config.network_settings, generator(), head="squashed")
    critics = build_critics(
        case.spec, case.config.network_settings, len(case.config.reward_signals.active()), generator()
    )
    FlatAdam([(name, part) for name, part in critics.named_parameters() if part.requires_grad])

    state = translate(case.file(tmp_path), case.config, case.spec).state
    load(actor, state["actor"])
    load(critics, state["critics"])

    check_policy(case, actor)
    encoded, (continuous, _) = actor.encode(case.observations()), case.actions()
    q, v, _ = critics.q_values(encoded, continuous, 1)
    for judged, theirs in zip(q, ("q1", "q2"), strict=True):
        expected = case.answers[theirs][:, case.columns]
        close(judged.reshape(expected.shape), expected)
    close(v, case.answers["value"][:, case.columns])
    close(critics.initial_values(encoded), case.answers["target"][:, case.columns])


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("poca")])
def test_policy_and_team_critic_of_poca_answer_as_they_did_in_ml_agents(tmp_path: Path, name: str) -> None:
    case = Case(name)
    settings = case.config.network_settings
    actor = Actor(case.spec, settings, generator())
    critic = TeamCritic(case.spec, settings, len(case.config.reward_signals.active()), generator())

    load(
        nn.ModuleDict({"actor": actor, "critic": critic}),
        translate(case.file(tmp_path), case.config, case.spec).state["model"],
    )

    check_policy(case, actor)
    prefixes = ["", *(f"mate {mate} " for mate in range(MATES))]
    pool = [torch.cat(parts) for parts in zip(*(case.observations(prefix) for prefix in prefixes), strict=True)]
    acted = [torch.cat(parts) for parts in zip(*(case.actions(prefix) for prefix in prefixes), strict=True)]
    members = critic.embed(actor.encode(pool), flat_actions(acted[0], acted[1], case.spec.actions.discrete_branches))
    rows = torch.arange(ROWS)
    mates = torch.stack([rows + (mate + 1) * ROWS for mate in range(MATES)], 1)
    memories = [remembered(key, critic.memory_size) for key in ("value memory", "baseline memory")]
    memory = None if memories[0] is None else torch.cat([part for part in memories if part is not None])
    values, baselines = critic(members, rows, mates, torch.ones(ROWS, MATES, dtype=torch.bool), memory)
    close(values, case.answers["team values"][:, case.columns])
    close(baselines, case.answers["team baselines"][:, case.columns])


@pytest.mark.parametrize("name", [name for name in NAMES if "signals" in name or name == "poca-memory"])
def test_reward_signals_judge_as_they_did_in_ml_agents(tmp_path: Path, name: str) -> None:
    case = Case(name)
    signals = dict(case.config.reward_signals.active())

    state = translate(case.file(tmp_path), case.config, case.spec).state["signals"]

    assert set(state) == set(signals) - {"extrinsic"}
    transitions, seen = case.transitions(), case.observations()
    if "curiosity" in signals:
        curiosity = CuriosityNetworks(signals["curiosity"], case.spec, generator())
        load(curiosity, state["curiosity"]["model"])
        close(curiosity(transitions)[0], case.answers["curiosity reward"])
        features = [
            curiosity.features(curiosity.features.encode(each))[0] for each in (seen, case.observations("next "))
        ]
        close(curiosity.inverse(torch.cat(features, 1)), case.answers["curiosity inverse"])
    if "rnd" in signals:
        rnd = RNDNetworks(signals["rnd"], case.spec, generator())
        load(rnd, state["rnd"]["model"])
        encoded = rnd.target.encode(seen)
        close(rnd.target(encoded)[0], case.answers["rnd target"])
        close(rnd.predictor(encoded)[0], case.answers["rnd predictor"])
    if "gail" in signals:
        gail = Discriminator(signals["gail"], case.spec, generator())
        load(gail, state["gail"]["model"])
        close(gail(gail.inputs(transitions)).logit.sigmoid(), case.answers["gail"])
