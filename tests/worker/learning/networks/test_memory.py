"""The LSTM: how it starts, and that a sequence is what its steps are."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from worker.learning.networks.memory import Memory


def make_memory(inputs: int = 5, memory_size: int = 8) -> Memory:
    return Memory(inputs, memory_size, torch.Generator().manual_seed(1)).requires_grad_(requires_grad=False)


@given(st.integers(0, 2**31), st.integers(1, 4), st.integers(1, 6))
def test_a_sequence_equals_its_steps_one_by_one(seed: int, sequences: int, length: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    memory, inputs = make_memory(), torch.randn(sequences, length, 5, generator=generator)
    before = torch.randn(sequences, 8, generator=generator)

    at_once, after = memory(inputs.view(-1, 5), before, length)

    state, outputs = before, []
    for step in range(length):
        output, state = memory(inputs[:, step], state, 1)
        outputs.append(output)
    torch.testing.assert_close(at_once, torch.stack(outputs, 1).view(-1, 4), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(after, state, atol=1e-5, rtol=1e-5)


def test_the_state_is_hidden_and_cell_and_starts_as_zeros() -> None:
    memory, inputs = make_memory(), torch.randn(3, 5)

    outputs, state = memory(inputs, None, 1)

    torch.testing.assert_close(state[:, :4], outputs)
    torch.testing.assert_close(memory(inputs, torch.zeros(3, 8), 1)[1], state)


def test_the_arithmetic_is_torchs_lstm() -> None:
    memory, reference = make_memory(), nn.LSTM(5, 4, batch_first=True)
    ours = [memory.input_weight, memory.hidden_weight, memory.input_bias, memory.hidden_bias]
    with torch.no_grad():
        for parameter, mine in zip(reference.parameters(), ours, strict=True):
            parameter.copy_(mine)
    inputs, state = torch.randn(2, 3, 5), torch.randn(2, 8)

    with torch.no_grad():
        expected, (hidden, cell) = reference(inputs, (state[None, :, :4].contiguous(), state[None, :, 4:].contiguous()))
    outputs, after = memory(inputs.view(-1, 5), state, 3)

    torch.testing.assert_close(outputs, expected.reshape(-1, 4))
    torch.testing.assert_close(after, torch.cat([hidden[0], cell[0]], 1))


def test_weights_start_as_in_ml_agents() -> None:
    memory = make_memory(40, 128)

    # each gate is Xavier uniform by itself: within sqrt(6 / (inputs + 64))
    for weight, inputs in ((memory.input_weight, 40), (memory.hidden_weight, 64)):
        for gate in weight.chunk(4):
            assert float(gate.abs().max()) == pytest.approx((6 / (inputs + 64)) ** 0.5, rel=0.02)
    # the forget gate's bias is 1 in both vectors, which makes 2
    for bias in (memory.input_bias, memory.hidden_bias):
        assert [float(gate.sum()) for gate in bias.chunk(4)] == [0.0, 64.0, 0.0, 0.0]
