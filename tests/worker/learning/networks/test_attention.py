"""Entities: neither their order nor padding matters, and the arithmetic is that of ML-Agents."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from worker.learning.networks.attention import EntityEmbedding, ResidualSelfAttention, padding_of


def make_attention(width: int = 16) -> ResidualSelfAttention:
    attention = ResidualSelfAttention(width, torch.Generator().manual_seed(1))
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.mul_(10.0)  # so that entities attend to each other unequally
    return attention.requires_grad_(requires_grad=False)


def make_embedding(own: int) -> EntityEmbedding:
    return EntityEmbedding(3, own, 16, torch.Generator().manual_seed(2)).requires_grad_(requires_grad=False)


def attend(entities: Tensor, own: Tensor | None = None) -> Tensor:
    """Entities through their embedding and attention, as the network does it."""
    embedded = make_embedding(0 if own is None else own.shape[1])(entities, own)
    result: Tensor = make_attention()(embedded, padding_of(entities))
    return result


@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(0, 5))
def test_padding_does_not_change_the_result(seed: int, entities: int, padding: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    real, own = torch.randn(4, entities, 3, generator=generator), torch.randn(4, 2, generator=generator)

    padded = torch.cat([real, torch.zeros(4, padding, 3)], 1)

    torch.testing.assert_close(attend(padded, own), attend(real, own), atol=1e-5, rtol=1e-5)


@given(st.integers(0, 2**31), st.permutations(range(5)))
def test_order_does_not_change_the_result(seed: int, order: list[int]) -> None:
    entities = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(seed))
    entities[:, 3:] = 0  # padding may stand anywhere, too

    torch.testing.assert_close(attend(entities[:, order]), attend(entities), atol=1e-5, rtol=1e-5)


def test_another_entity_does_change_the_result() -> None:
    entities = torch.randn(1, 5, 3, generator=torch.Generator().manual_seed(1))
    other = entities.clone()
    other[0, 2] += 1.0

    assert float((attend(entities) - attend(other)).abs().max()) > 0.01


def test_without_entities_the_result_is_zero() -> None:
    assert not attend(torch.zeros(2, 5, 3)).any()


def test_entities_with_small_numbers_are_real() -> None:
    entities = torch.zeros(1, 3, 3)
    entities[0, 1, 0] = 1e-6  # ML-Agents would take it for padding: its sum of squares is below 0.01

    assert padding_of(entities).tolist() == [[True, False, True]]


def test_attention_is_the_documented_arithmetic() -> None:
    attention, width, heads = make_attention(), 16, 4
    entities = torch.randn(1, 3, width, generator=torch.Generator().manual_seed(3))
    entities[0, 2] = 100.0  # padding may hold anything behind its embedding
    padding = torch.tensor([[False, False, True]])

    def norm(rows: Tensor) -> Tensor:
        return (rows - rows.mean(1, keepdim=True)) / (rows.var(1, correction=0, keepdim=True) + 1e-5).sqrt()

    normed = norm(entities[0])
    query, key, value = (layer(normed) for layer in (attention.query, attention.key, attention.value))
    attended = torch.zeros(3, width)
    for head in range(heads):
        columns = slice(head * 4, head * 4 + 4)
        scores = query[:, columns] @ key[:, columns].t() / math.sqrt(width)  # the root of the width, not of a head's
        scores[:, 2] = -math.inf
        attended[:, columns] = scores.softmax(1) @ value[:, columns]
    expected = norm(attention.out(attended) + normed)[:2].mean(0, keepdim=True)

    torch.testing.assert_close(attention(entities, padding), expected, atol=1e-5, rtol=1e-5)


def test_an_embedding_sees_the_agent_beside_each_entity() -> None:
    embedding = make_embedding(2)
    entities, own = torch.randn(4, 5, 3), torch.randn(4, 2)

    both = torch.cat([own.unsqueeze(1).expand(4, 5, 2), entities], 2)
    expected = F.silu(F.linear(both, embedding.dense.weight, embedding.dense.bias))

    torch.testing.assert_close(embedding(entities, own), expected)


def test_weights_start_as_in_ml_agents() -> None:
    attention = ResidualSelfAttention(128, torch.Generator().manual_seed(1)).requires_grad_(requires_grad=False)
    embedding = EntityEmbedding(200, 128, 128, torch.Generator().manual_seed(1)).requires_grad_(requires_grad=False)

    # standard normal times sqrt(0.125 / 128) = 0.03125, whatever the number of inputs
    for layer in (attention.query, attention.key, attention.value, attention.out, embedding.dense):
        assert float(layer.weight.std()) == pytest.approx(0.03125, rel=0.03)
        assert not layer.bias.any()


def test_a_width_that_heads_cannot_share_is_refused() -> None:
    with pytest.raises(ValueError, match="30 units needs a multiple of its 4 heads"):
        ResidualSelfAttention(30, torch.Generator())


def test_a_gradient_penalty_can_be_differentiated_twice() -> None:
    entities = torch.randn(2, 3, 16, requires_grad=True)
    attention = ResidualSelfAttention(16, torch.Generator().manual_seed(1))

    (slope,) = torch.autograd.grad(
        attention(entities, padding_of(entities)).square().sum(), entities, create_graph=True
    )
    slope.square().sum().backward()

    assert attention.query.weight.grad is not None
    assert attention.query.weight.grad.any()
