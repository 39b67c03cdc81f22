"""The critic of teams: who is in a team matters, and nothing else."""

import math

import pytest
import torch
from torch import Tensor

from ludus.collector.spec_checks import UnsupportedSpec
from ludus.config.network import NetworkSettings
from ludus.protocol.spec import ActionSpec, BehaviorSpec
from tests.worker.rollouts import make_spec
from worker.learning.networks.multi_agent import Members, TeamCritic

UNITS, SIGNALS, POOL = 16, 2, 6


def make_critic(spec: BehaviorSpec | None = None, *, seed: int = 1, **settings: object) -> TeamCritic:
    network = NetworkSettings.model_validate({"hidden_units": UNITS, **settings})
    critic = TeamCritic(spec or make_spec(continuous=2, branches=(3,)), network, SIGNALS, generator(seed))
    critic.largest.fill_(4.0)
    with torch.no_grad():
        critic.heads.bias.copy_(torch.tensor([0.3, -0.2]))
        critic.heads.weight.mul_(10.0)  # as if it had learned: differences are seen
    return critic.requires_grad_(False)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def embedded(critic: TeamCritic, seed: int = 2, *, actions: Tensor | None = None) -> Members:
    """Six agents that see and do something random."""
    draw = generator(seed)
    seen = torch.randn(POOL, 4, generator=draw)
    done = torch.randn(POOL, 5, generator=draw)
    return critic.embed([seen], done if actions is None else actions)


def judged(critic: TeamCritic, members: Members, own: int, mates: list[int]) -> tuple[Tensor, Tensor]:
    present = torch.ones(1, len(mates), dtype=torch.bool)
    rows = torch.tensor([mates], dtype=torch.int64).view(1, len(mates))
    values, baselines = critic(members, torch.tensor([own]), rows, present)
    return values[0], baselines[0]


def test_the_order_of_mates_changes_nothing() -> None:
    critic = make_critic()
    members = embedded(critic)

    for one, other in zip(judged(critic, members, 0, [1, 2, 3]), judged(critic, members, 0, [3, 1, 2]), strict=True):
        torch.testing.assert_close(one, other)


def test_the_value_is_that_of_the_team_whoever_of_it_asks() -> None:
    critic = make_critic()
    members = embedded(critic)

    values = [judged(critic, members, own, [mate for mate in (0, 1, 2) if mate != own])[0] for own in (0, 1, 2)]

    torch.testing.assert_close(values[0], values[1])
    torch.testing.assert_close(values[0], values[2])


@pytest.mark.long
def test_absent_mates_change_nothing_whatever_stands_in_their_place() -> None:
    critic = make_critic()
    members = embedded(critic)
    rows, present = torch.tensor([[1, 5, 4]]), torch.tensor([[True, False, False]])

    values, baselines = critic(members, torch.tensor([0]), rows, present)

    expected = judged(critic, members, 0, [1])
    torch.testing.assert_close(values[0], expected[0])
    torch.testing.assert_close(baselines[0], expected[1])


def test_the_baseline_knows_what_mates_do_and_not_what_its_agent_does() -> None:
    critic = make_critic()
    actions = torch.randn(POOL, 5, generator=generator(3))
    others = actions.clone()
    others[0] += 1.0  # agent 0 does something else

    before, after = (embedded(critic, actions=done) for done in (actions, others))

    assert torch.equal(judged(critic, before, 0, [1, 2])[1], judged(critic, after, 0, [1, 2])[1])
    assert not torch.allclose(judged(critic, before, 1, [0, 2])[1], judged(critic, after, 1, [0, 2])[1])
    assert torch.equal(
        judged(critic, before, 1, [0, 2])[0], judged(critic, after, 1, [0, 2])[0]
    )  # values see no action


@pytest.mark.long
def test_a_lone_agents_baseline_is_its_value() -> None:
    critic = make_critic()

    values, baselines = judged(critic, embedded(critic), 0, [])

    torch.testing.assert_close(values, baselines)


@pytest.mark.parametrize(("members", "size"), [(0, -1.0), (1, -0.5), (2, 0.0), (4, 1.0)])
def test_the_size_of_a_team_is_told_from_minus_one_to_one(members: int, size: float) -> None:
    critic = make_critic()  # the largest team had 4
    absent = torch.arange(4).unsqueeze(0) >= members

    assert critic.embed_team(torch.randn(1, 4, UNITS), absent).size.tolist() == [[size]]


def test_weights_start_as_in_ml_agents() -> None:
    spec = BehaviorSpec("Wide", make_spec(observations=(200,)).observations, ActionSpec(2, (3,)))
    critic = TeamCritic(spec, NetworkSettings(hidden_units=256), SIGNALS, generator(1))

    for embedding in (critic.seeing, critic.acting):
        assert float(embedding.dense.weight.detach().std()) == pytest.approx(math.sqrt(0.125 / 256), rel=0.05)
        assert not embedding.dense.bias.detach().any()
    hidden = critic.hidden.layers[0].weight.detach()  # Kaiming (gain 1), times sqrt(0.125 / hidden units)
    assert float(hidden.std()) == pytest.approx(math.sqrt(0.125 / 256) / math.sqrt(256), rel=0.05)
    assert critic.acting.dense.weight.shape == (256, 200 + 2 + 3)
    assert critic.heads.weight.shape == (SIGNALS, 256 + 1)


@pytest.mark.long
def test_a_memory_makes_the_past_count() -> None:
    critic = make_critic(memory={"memory_size": 12})
    members = embedded(critic)
    own, mates, present = torch.tensor([0, 1, 2]), torch.tensor([[3], [3], [3]]), torch.ones(3, 1, dtype=torch.bool)
    states = torch.randn(2, 12, generator=generator(4))

    at_once, _ = critic(members, own, mates, present, states, length=3)
    embedding = critic.embed_teams(members, own, mates, present)
    state, one_by_one = states[:1], []
    for step in range(3):
        features, after = critic.recur(embedding.summary[step : step + 1], state, 1)
        assert after is not None
        state = after
        one_by_one.append(critic.values_of(features, embedding.size[step : step + 1]))

    torch.testing.assert_close(at_once, torch.cat(one_by_one))
    forgetful, _ = critic(members, own, mates, present, None, length=3)
    assert not torch.allclose(at_once, forgetful)


def test_pictures_and_entities_are_encoded() -> None:
    spec = make_spec(observations=(3, (1, 8, 8), (4, 2)), branches=(2,))
    critic = make_critic(spec, vis_encode_type="match3")
    pictures = torch.randint(0, 256, (POOL, 1, 8, 8), dtype=torch.uint8)

    members = critic.embed([torch.randn(POOL, 3), pictures, torch.randn(POOL, 4, 2)], torch.zeros(POOL, 2))

    assert members.seeing.shape == members.acting.shape == (POOL, UNITS)


def test_units_that_do_not_fit_the_heads_are_refused() -> None:
    with pytest.raises(UnsupportedSpec, match="hidden_units is 30; POCA's critic needs a multiple of its 4 heads"):
        make_critic(hidden_units=30)
