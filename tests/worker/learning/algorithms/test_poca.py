"""The update of a team: what it starts from, what each member is credited with, what it changes and what it refuses."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ludus.collector.segments import SegmentEnd
from ludus.config.behavior import POCAConfig
from ludus.protocol.spec import BehaviorSpec
from tests.toys.drills import Recall
from tests.toys.playing import training
from tests.worker.learning.algorithms.test_on_policy import poisoned
from tests.worker.rollouts import equal_states, make_rollout, make_spec, random_rollout
from worker.experience.groups import teams_of
from worker.experience.rollout import Rollout
from worker.learning.algorithms.numeric_check import Diverged
from worker.learning.algorithms.poca import POCA, TeamExperience
from worker.learning.build import Demonstrations, build_algorithm
from worker.learning.functional.distributions import joint_distribution
from worker.learning.functional.prediction import flat_actions

CPU = torch.device("cpu")
MEMORY = {"memory": {"sequence_length": 4, "memory_size": 8}}


def make_poca(
    spec: BehaviorSpec | None = None, *, network: dict[str, Any] | None = None, seed: int = 1, **overrides: Any
) -> POCA:
    signals = overrides.pop("signals", {"extrinsic": {"gamma": overrides.pop("gamma", 0.99)}})
    hyper = {"batch_size": 64, "buffer_size": 256, "learning_rate": 3e-3, "learning_rate_schedule": "constant"}
    config = POCAConfig.model_validate(
        {
            "trainer_type": "poca",
            "hyperparameters": {**hyper, **overrides},
            "network_settings": {"hidden_units": 16, "num_layers": 1, **(network or {})},
            "reward_signals": signals,
        }
    )
    poca = build_algorithm(config, spec or make_spec(observations=(3,), branches=(2,)), CPU, seed, Demonstrations({}))
    assert isinstance(poca, POCA)
    return poca


def group(ticks: list[list[int]], successors: list[int], endings: list[SegmentEnd], **columns: Any) -> Rollout:
    """One group of agents that see random things and do what `discrete` says (else nothing)."""
    lengths = [len(part) for part in ticks]
    steps, rng = sum(lengths), np.random.default_rng(7)
    arguments: dict[str, Any] = {
        "observations": [rng.normal(size=(steps, 3)).astype(np.float32)],
        "next_observations": [rng.normal(size=(len(lengths), 3)).astype(np.float32)],
        "rewards": np.zeros(steps),
        "discrete": np.zeros((steps, 1)),
        "log_probs": np.full((steps, 1), np.log(0.5)),
        "lengths": lengths,
        "ending": endings,
        "ticks": [tick for part in ticks for tick in part],
        "successor_ticks": successors,
        "groups": [7] * len(lengths),
    }
    return make_rollout(**{**arguments, **columns})


@torch.no_grad()
def prepared(poca: POCA, rollout: Rollout) -> TeamExperience:
    """The rollout with its targets."""
    return poca.prepare(rollout)


def value_of(poca: POCA, *agents: torch.Tensor) -> float:
    """The critic's value of a team that sees this."""
    seen = torch.stack(agents)
    members = poca.critic.embed([seen], torch.zeros(len(seen), 2))
    embedding = poca.critic.embed_team(members.seeing.unsqueeze(0), torch.zeros(1, len(seen), dtype=torch.bool))
    return float(poca.critic.values_of(embedding.summary, embedding.size).detach())


# Credit ------------------------------------------------------------------------------------------------------------


def test_an_agent_that_dies_is_credited_with_what_its_mates_can_still_earn() -> None:
    poca = make_poca(gamma=0.5, lambd=0.5)
    rollout = group(
        [[10], [10, 11]],
        [11, 12],
        [SegmentEnd.TERMINATED, SegmentEnd.TERMINATED],
        rewards=np.array([-1.0, 0.0, 4.0]),
        mates_alive=[True, False],
    )

    batch = prepared(poca, rollout).batch

    dead, mate, last = rollout.observations[0]
    together, alone = value_of(poca, dead, mate), value_of(poca, last)
    assert batch.values[:, 0].tolist() == pytest.approx([together, together, alone], abs=1e-5)
    # The dead one: the team's reward until it died, then half of the value of the one who goes on, not its own.
    # The mate: the same reward, then the mean (lambda = 0.5) of that value and of what really came, 4.
    expected = [-1.0 + 0.5 * alone, -1.0 + 0.5 * (0.5 * alone + 0.5 * 4.0), 4.0]
    assert batch.returns[:, 0].tolist() == pytest.approx(expected, abs=1e-5)


def test_a_team_that_is_cut_bootstraps_from_what_all_of_it_sees_then() -> None:
    poca = make_poca(gamma=0.5)
    rollout = group([[10], [10]], [11, 11], [SegmentEnd.CUT, SegmentEnd.CUT], group_rewards=np.array([1.0, 1.0]))

    returns = prepared(poca, rollout).batch.returns[:, 0].tolist()

    behind = value_of(poca, *rollout.next_observations[0])
    assert returns == pytest.approx([1.0 + 0.5 * behind] * 2, abs=1e-5)


def test_advantage_is_what_came_less_what_the_agent_could_expect_whatever_it_did() -> None:
    poca = make_poca()
    rollout = group(
        [[10, 11], [10, 11]], [12, 12], [SegmentEnd.TERMINATED] * 2, rewards=np.array([1.0, 2.0, -1.0, 5.0])
    )

    experience = prepared(poca, rollout)

    raw = (experience.batch.returns - experience.baselines)[:, 0]
    torch.testing.assert_close(experience.batch.advantage, (raw - raw.mean()) / raw.std(correction=0))


def test_what_an_agent_does_changes_its_mates_baselines_and_not_its_own() -> None:
    poca = make_poca()
    rollout = group([[10], [10]], [11, 11], [SegmentEnd.TERMINATED] * 2)
    other = replace(rollout, discrete=torch.tensor([[1], [0]]))

    before, after = (prepared(poca, item).baselines[:, 0].tolist() for item in (rollout, other))

    assert before[0] == after[0]
    assert before[1] != after[1]


def test_agents_without_a_group_are_teams_of_their_own() -> None:
    poca = make_poca(gamma=0.5)
    rollout = group(
        [[10], [10]], [11, 11], [SegmentEnd.TERMINATED, SegmentEnd.CUT], rewards=np.array([3.0, 0.0]), groups=[0, 0]
    )

    experience = prepared(poca, rollout)

    assert experience.mates.shape == (2, 0)
    behind = value_of(poca, rollout.next_observations[0][1])
    assert experience.batch.returns[:, 0].tolist() == pytest.approx([3.0, 0.5 * behind], abs=1e-5)
    torch.testing.assert_close(experience.baselines, experience.batch.values)  # nobody's action is known


def test_a_signal_that_ignores_termination_goes_on_where_the_whole_team_ended() -> None:
    signals = {"extrinsic": {"gamma": 0.5}, "rnd": {"gamma": 0.5, "network_settings": {"hidden_units": 8}}}
    poca = make_poca(signals=signals)
    rollout = group([[10]], [11], [SegmentEnd.TERMINATED], rewards=np.array([3.0]))

    experience = prepared(poca, rollout)

    extrinsic, rnd = experience.batch.returns[0].tolist()
    assert extrinsic == pytest.approx(3.0)
    assert rnd != pytest.approx(float(experience.episodes[0, 1]), abs=1e-4)  # the value behind the end counts


def test_the_largest_team_is_counted_and_remembered() -> None:
    poca = make_poca()

    poca.update(group([[10]] * 3, [11] * 3, [SegmentEnd.CUT] * 3), step=0)
    poca.update(group([[10]] * 2, [11] * 2, [SegmentEnd.CUT] * 2), step=0)

    assert float(poca.critic.largest) == 3.0


# Gradient ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("network", "clip"), [({}, False), (MEMORY, True)], ids=["plain", "recurrent-and-clipped"])
def test_gradient_is_that_of_the_objective(network: dict[str, Any], clip: bool) -> None:
    spec = make_spec(observations=(3,), continuous=2, branches=(3, 2))
    poca = make_poca(spec, network=network, batch_size=256, clip_value_loss=clip)
    rollout = random_rollout(
        spec, [5, 3, 7, 4], np.random.default_rng(1), memory_size=8 if network else 0, group_size=2, masked=True
    )
    experience = prepared(poca, rollout)
    (minibatch,) = list(poca.minibatches(experience))[:1]
    with torch.no_grad():  # the critic has moved since: old values are not the new ones
        poca.critic.heads.bias += 0.3
    rates = poca.rates(0)

    with torch.no_grad():
        poca.differentiate(experience, minibatch, rates)
    found = {name: parameter.grad.clone() for name, parameter in poca.model.named_parameters() if parameter.numel()}
    poca.optimizer.zero_gradient()

    batch, steps = experience.batch, minibatch.steps
    memory = None if experience.memories is None else experience.memories[minibatch.rows[:: minibatch.length]]
    encoded = [part[minibatch.rows] for part in experience.pool]
    head, _ = poca.actor(encoded, memory, length=minibatch.length)
    joint = joint_distribution(
        minibatch.without_padding(head),
        poca.actor.log_sigma,
        batch.continuous[steps],
        batch.discrete[steps],
        None if batch.masks is None else batch.masks[steps],
        (3, 2),
    )
    ratio, advantage = (joint.log_prob - batch.log_prob[steps]).exp(), batch.advantage[steps]
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    losses = []
    for new, old in zip(
        poca.values_and_baselines(experience, minibatch), (batch.values, experience.baselines), strict=True
    ):
        plain, near = new - batch.returns[steps], old[steps] + (new - old[steps]).clamp(-0.2, 0.2)
        clipped = near - batch.returns[steps]
        losses.append((torch.maximum(plain**2, clipped**2) if clip else plain**2).mean())
    (-surrogate + 0.5 * (losses[0] + 0.5 * losses[1]) - rates.beta * joint.entropy.mean()).backward()

    for name, parameter in poca.model.named_parameters():
        if parameter.numel():
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("network", [{"normalize": True}, {**MEMORY, "normalize": True}], ids=["plain", "recurrent"])
def test_ratio_is_one_on_the_first_minibatch(network: dict[str, Any]) -> None:
    drill = Recall(agents=8)  # nobody dies: each round has its own steps only
    drill.group_size = 2
    game = training(drill, trainer="poca", network=network, buffer_size=128, batch_size=128, num_epoch=1)
    game.run(2)  # weights and normalizer have moved

    game.run(1)

    assert game.metrics["Policy/Lag"] == 0.0
    assert game.metrics["Policy/Approximate KL"] < 1e-9
    assert game.metrics["Policy/Clip Fraction"] == 0.0


def test_each_row_of_the_pool_is_judged_alike_in_a_minibatch_and_in_the_whole() -> None:
    spec = make_spec(observations=(3,), continuous=2, branches=(3,))
    poca = make_poca(spec, network=MEMORY)
    rollout = random_rollout(spec, [5, 3, 7, 4, 9], np.random.default_rng(1), memory_size=8, group_size=3)
    experience = prepared(poca, rollout)

    for minibatch in poca.minibatches(experience):
        values, baselines = poca.values_and_baselines(experience, minibatch)

        torch.testing.assert_close(values.detach(), experience.batch.values[minibatch.steps])
        torch.testing.assert_close(baselines.detach(), experience.baselines[minibatch.steps])


def test_minibatches_are_of_real_steps_each_once() -> None:
    poca = make_poca(network=MEMORY, num_epoch=1, batch_size=8)
    rollout = random_rollout(
        make_spec(observations=(3,), branches=(2,)), [5, 4, 8], np.random.default_rng(1), memory_size=8
    )

    minibatches = list(poca.minibatches(prepared(poca, rollout)))

    assert len(minibatches) == 2  # five sequences of at most 4 steps, two in each minibatch; one is left out
    assert all(len(minibatch.rows) == 8 for minibatch in minibatches)
    steps = torch.cat([minibatch.steps for minibatch in minibatches]).tolist()
    assert len(set(steps)) == len(steps) >= 9


def test_flat_actions_of_mates_are_what_the_environment_got() -> None:
    spec = make_spec(observations=(3,), continuous=1, branches=(2,))
    poca = make_poca(spec)
    rollout = random_rollout(spec, [2, 2], np.random.default_rng(1), group_size=2)

    actions = prepared(poca, rollout).actions

    assert actions.shape == (4 + 2, 1 + 2)
    torch.testing.assert_close(actions[:4], flat_actions(rollout.continuous.clamp(-3, 3) / 3, rollout.discrete, (2,)))
    assert not actions[4:].any()


# Bookkeeping -------------------------------------------------------------------------------------------------------


def test_metrics_have_ml_agents_names() -> None:
    signals = {"extrinsic": {}, "rnd": {"network_settings": {"hidden_units": 8}}}
    poca = make_poca(signals=signals)

    metrics = poca.update(group([[10], [10]], [11, 11], [SegmentEnd.CUT] * 2), step=0)

    assert {
        "Losses/Policy Loss",
        "Losses/Value Loss",
        "Losses/Baseline Loss",
        "Losses/RND Loss",
        "Policy/Entropy",
        "Policy/Learning Rate",
        "Policy/Epsilon",
        "Policy/Beta",
        "Policy/Extrinsic Value Estimate",
        "Policy/Extrinsic Baseline Estimate",
        "Policy/Rnd Value Estimate",
        "Policy/Rnd Baseline Estimate",
    } < set(metrics)
    assert all(np.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize("column", ["observations", "rewards"])
def test_a_value_that_is_not_finite_is_named_and_the_update_taken_back(column: str) -> None:
    signals = {"extrinsic": {}, "rnd": {"network_settings": {"hidden_units": 8}}}
    poca = make_poca(signals=signals, network=MEMORY)
    spec = make_spec(observations=(3,), branches=(2,))
    alive = {"memory_size": 8, "group_size": 3, "ending": SegmentEnd.CUT}
    poca.update(random_rollout(spec, [5, 4], np.random.default_rng(1), **alive), step=0)
    before = poca.state_dict()
    rollout = poisoned(random_rollout(spec, [5, 4, 3], np.random.default_rng(1), sequences=[1] * 3, **alive), column)

    with pytest.raises(Diverged, match="taken back") as diverged:
        poca.update(rollout, step=0)

    assert diverged.value.tensor == {"rewards": "returns"}.get(column, column)
    after = poca.state_dict()
    del before["generator"], after["generator"]  # the order of minibatches was drawn
    assert equal_states(before, after)


def test_memories_of_the_critic_go_on_where_an_episode_does() -> None:
    game = training(
        Recall(gap=6, agents=4), trainer="poca", network=MEMORY, time_horizon=3, buffer_size=20, batch_size=20
    )

    game.run(1)

    poca = game.algorithm
    assert isinstance(poca, POCA)
    assert len(poca.memories.state_dict()["agents"]) == 4
    assert poca.memories.state_dict()["values"].abs().sum() > 0


def test_pictures_and_entities_are_learnt_from() -> None:
    spec = make_spec(observations=(3, (1, 8, 8), (4, 2)), continuous=1, branches=(2,))
    poca = make_poca(spec, network={"vis_encode_type": "match3", **MEMORY})
    rollout = random_rollout(spec, [5, 4, 8, 3], np.random.default_rng(1), memory_size=8, group_size=2)

    metrics = poca.update(rollout, step=0)

    assert np.isfinite(metrics["Losses/Baseline Loss"])
    assert teams_of(rollout).steps.present.any()


def test_the_extrinsic_reward_of_an_episode_is_what_the_team_got_while_its_agent_lived() -> None:
    poca = make_poca()
    rollout = group(
        [[10], [10, 11]],
        [11, 12],
        [SegmentEnd.TERMINATED, SegmentEnd.TERMINATED],
        rewards=np.array([-1.0, 0.0, 4.0]),
        group_rewards=np.array([0.0, 0.0, 2.0]),
        mates_alive=[True, False],
    )

    metrics = poca.update(rollout, step=0)

    assert metrics["Policy/Extrinsic Reward"] == pytest.approx((-1.0 + (-1.0 + 0.0 + 4.0 + 2.0)) / 2)
