"""Pink noise: what every step sees of it is a standard normal, what many steps see of it pulls one way."""

import numpy as np
import pytest

from ludus.collector.exploration import PinkNoise

AGENTS, STEPS = 64, 4096


@pytest.fixture(scope="module")
def noise() -> np.ndarray:
    """Of many agents with two columns over many steps: (STEPS, AGENTS, 2)."""
    rng, pink = np.random.default_rng(1), PinkNoise(2)
    return np.stack([pink.draw(np.arange(AGENTS), rng) for _ in range(STEPS)])


def test_every_step_is_standard_normal_from_the_first_on(noise: np.ndarray) -> None:
    rng = np.random.default_rng(2)
    first = PinkNoise(1).draw(np.arange(100_000), rng)

    assert first.dtype == np.float32
    for sample, tolerance in ((first, 0.02), (noise, 0.05)):
        assert float(sample.mean()) == pytest.approx(0.0, abs=tolerance)
        assert float(sample.var()) == pytest.approx(1.0, abs=tolerance)
        assert float((sample**4).mean()) == pytest.approx(3.0, abs=6 * tolerance)


def test_its_power_falls_with_the_frequency_as_that_of_pink_noise(noise: np.ndarray) -> None:
    power = (np.abs(np.fft.rfft(noise, axis=0)) ** 2).mean((1, 2))
    octaves = [power[STEPS >> (octave + 1) : STEPS >> octave].sum() for octave in range(2, 9)]  # periods 8 to 512

    slope = np.polyfit(np.arange(len(octaves)), np.log2(octaves), 1)[0]

    assert slope == pytest.approx(0.0, abs=0.1), "the same power in every octave; white noise halves it, red doubles it"


def test_columns_and_agents_are_independent(noise: np.ndarray) -> None:
    between_columns = (noise[..., 0] * noise[..., 1]).mean()
    between_agents = (noise[:, : AGENTS // 2] * noise[:, AGENTS // 2 :]).mean()

    assert abs(between_columns) < 0.05
    assert abs(between_agents) < 0.05


def test_an_agent_keeps_its_noise_whoever_else_acts() -> None:
    pink, rng = PinkNoise(1), np.random.default_rng(3)
    before, after = [], []
    for _ in range(2000):
        before.append(pink.draw(np.array([5, 900]), rng)[0, 0])
        pink.draw(np.array([3]), rng)
        after.append(pink.draw(np.array([7, 5]), rng)[1, 0])

    correlation = np.corrcoef(before, after)[0, 1]

    assert correlation > 0.7, "one octave in ten is new at each step, one half new, one a quarter ..."


def test_nobody_draws_nothing() -> None:
    assert PinkNoise(3).draw(np.array([], np.intp), np.random.default_rng(1)).shape == (0, 3)
