"""Bodies: what they see, how wide they are, and what they remember."""

from dataclasses import replace

import pytest
import torch

from ludus.collector.spec_checks import UnsupportedSpec
from ludus.config.network import NetworkSettings
from tests.worker.learning.networks.kinds import EVERYTHING, KINDS, OTHERS, make_actor, remember, see
from worker.learning.networks.body import NetworkBody


def make_body(name: str, *, extra_inputs: int = 0) -> NetworkBody:
    kind = KINDS[name]
    generator = torch.Generator().manual_seed(1)
    return NetworkBody(kind.spec.observations, kind.network, generator, extra_inputs=extra_inputs)


@pytest.mark.parametrize("name", KINDS)
def test_features_are_as_wide_as_announced(name: str) -> None:
    body = make_body(name)
    observations, _ = see(KINDS[name].spec, 6)

    features, memory = body(body.encode(observations), length=2)

    assert features.shape == (6, body.features)
    assert body.features == (6 if body.memory_size else 16)  # half of 12, or the hidden units
    assert (memory is None) if not body.memory_size else (memory.shape == (3, 12))


def test_encoded_are_joined_vectors_then_pictures_then_entities() -> None:
    body = make_body("everything")
    observations, _ = see(EVERYTHING, 5)  # vector, picture, entities, vector, entities
    body.update_normalizer(observations)

    vectors, picture, *entities = body.encode(observations)

    assert body.normalizer is not None
    joined = torch.cat([observations[0], observations[3]], 1)
    torch.testing.assert_close(vectors, ((joined - body.normalizer.mean) / body.normalizer.std()).clamp(-5, 5).float())
    assert picture is observations[1], "pictures stay bytes, and are not copied"
    assert picture.dtype == torch.uint8
    assert entities[0] is observations[2]
    assert entities[1] is observations[4]


def test_a_critics_body_takes_what_the_actor_encoded() -> None:
    kind = KINDS["everything"]

    critic = NetworkBody(kind.spec.observations, kind.network, torch.Generator(), normalizes=False)

    assert critic.normalizer is None
    vectors = critic.encode(see(kind.spec, 3)[0])[0]
    assert vectors.shape == (3, 6)


@pytest.mark.parametrize("name", KINDS)
def test_extra_inputs_reach_the_features(name: str) -> None:
    body = make_body(name, extra_inputs=2)
    encoded = body.encode(see(KINDS[name].spec, 4)[0])
    extra = torch.randn(4, 2, requires_grad=True)

    features, _ = body(encoded, extra=extra)
    (features * torch.arange(features.shape[1])).sum().backward()  # the plain sum behind a norm is a constant

    assert extra.grad is not None
    assert (extra.grad.abs().sum(1) > 0).all()


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if "memory" in kind.settings])
def test_a_sequence_equals_its_steps_one_by_one(name: str) -> None:
    actor = make_actor(KINDS[name])
    encoded = actor.encode(see(KINDS[name].spec, 6)[0])
    memory = remember(actor, 2)

    at_once, after = actor(encoded, memory, length=3)
    steps = []
    for step in range(3):
        rows = torch.tensor([step, 3 + step])  # of both sequences
        head, memory = actor([part[rows] for part in encoded], memory)
        steps.append(head)

    torch.testing.assert_close(at_once, torch.stack(steps, 1).flatten(0, 1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(after, memory, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in OTHERS if name != "entities of nothing"])  # all padding
def test_every_weight_has_a_derivative(name: str) -> None:
    actor = make_actor(KINDS[name])

    head, memory = actor(actor.encode(see(KINDS[name].spec, 6)[0]), remember(actor, 2), length=3)
    (head.square().sum() + (0 if memory is None else memory.square().sum())).backward()

    idle = [
        key for key, item in actor.named_parameters() if item.numel() and (item.grad is None or not item.grad.any())
    ]
    # A norm takes away what is equal for all; a key's bias adds the same to all scores of a query.
    assert [key for key in idle if key != "log_sigma" and not key.endswith("attention.key.bias")] == []


def test_goals_condition_every_row_by_itself() -> None:
    body = make_body("goal")
    observations, _ = see(KINDS["goal"].spec, 2)
    observations[0][1] = observations[0][0]
    same, other = [part.clone() for part in observations], observations
    same[1][1] = same[1][0]

    with torch.no_grad():
        equal, _ = body(body.encode(same))
        different, _ = body(body.encode(other))

    torch.testing.assert_close(equal[0], equal[1])
    assert float((different[0] - different[1]).abs().max()) > 1e-3


def test_what_no_network_reads_is_refused_without_a_behaviors_name() -> None:
    settings = NetworkSettings.model_validate({"vis_encode_type": "nature_cnn"})

    small = replace(EVERYTHING.observations[1], shape=(3, 35, 84))

    with pytest.raises(UnsupportedSpec, match=r"^observation 1 .*'nature_cnn' needs a height and width of at least 36"):
        NetworkBody([EVERYTHING.observations[0], small], settings, torch.Generator())
