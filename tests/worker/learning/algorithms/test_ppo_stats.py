"""Numeric checks of PPO and POCA: ratios of probabilities."""

import torch

from worker.learning.algorithms.ppo_stats import PolicyCheck


def policy_trace(log_ratios: list[list[float]], value_losses: list[float]) -> PolicyCheck:
    trace = PolicyCheck()
    for log_ratio, loss in zip(log_ratios, value_losses, strict=True):
        trace.add_policy({"value loss": torch.tensor(loss)}, torch.tensor(log_ratio), None)
    return trace


def test_a_ratio_past_float32_is_named() -> None:
    diverged = policy_trace([[0.0, 0.1], [0.0, 99.0]], [1.0, 1.0]).diagnosis()  # e^99 > 3.4e38

    assert diverged is not None
    assert (diverged.tensor, diverged.minibatch) == ("ratio of probabilities", 1)


def test_a_term_that_went_wrong_before_the_ratio_is_named_first() -> None:
    diverged = policy_trace([[0.0], [float("nan")]], [float("inf"), 1.0]).diagnosis()

    assert diverged is not None
    assert (diverged.tensor, diverged.minibatch) == ("value loss", 0)


def test_ordinary_ratios_are_no_divergence() -> None:
    assert policy_trace([[0.0, -50.0], [3.0, 0.0]], [1.0, 2.0]).diagnosis() is None
