"""What counts as gone wrong, and how it is told."""

import pytest
import torch

from worker.learning.algorithms.numeric_check import Diverged, NumericCheck, first_infinite


def trace_of(**terms: list[float]) -> NumericCheck:
    trace = NumericCheck()
    for row in zip(*terms.values(), strict=True):
        trace.add({name: torch.tensor(value) for name, value in zip(terms, row, strict=True)})
    return trace


def test_means_are_over_minibatches() -> None:
    means = trace_of(policy=[1.0, 3.0], value=[10.0, 20.0]).means()

    assert {name: float(value) for name, value in means.items()} == {"policy": 2.0, "value": 15.0}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("minibatch", [0, 2])
def test_a_term_that_is_not_finite_is_named_with_its_minibatch(bad: float, minibatch: int) -> None:
    values = [1.0, 1.0, 1.0]
    values[minibatch] = bad
    trace = trace_of(policy=[0.0] * 3, value=values)

    diverged = trace.diagnosis()

    assert not bool(trace.is_valid())
    assert diverged is not None
    assert (diverged.tensor, diverged.minibatch) == ("value", minibatch)
    assert str(diverged) == f"value is not finite in minibatch {minibatch}; the update was taken back"


def test_a_term_that_grows_a_million_fold_explodes() -> None:
    diverged = trace_of(policy=[0.1, 0.1], value=[20.0, 3e7]).diagnosis()

    assert diverged is not None
    assert str(diverged) == "value exploded from 20 to 3e+07 in minibatch 1; the update was taken back"


def test_growth_is_measured_from_one_at_least() -> None:
    # From 1e-9 to 1e5 a term grows 10^14-fold, but it is only 10^5 times 1.
    assert trace_of(value=[1e-9, 1e5]).diagnosis() is None
    assert trace_of(value=[1e-9, 1.1e6]).diagnosis() is not None


def test_large_terms_are_no_explosion_if_they_begin_so() -> None:
    assert trace_of(value=[1e20, 5e20]).diagnosis() is None


def test_the_first_term_that_went_wrong_is_named() -> None:
    diverged = trace_of(policy=[0.0, 0.0, float("nan")], value=[0.0, float("inf"), float("nan")]).diagnosis()

    assert diverged is not None
    assert (diverged.tensor, diverged.minibatch) == ("value", 1)


def test_the_first_tensor_that_is_not_finite_is_named() -> None:
    fine, bad = torch.ones(2), torch.tensor([1.0, torch.nan])

    assert first_infinite([("values", fine)]) is None
    diverged = first_infinite([("values", fine), ("returns", bad)])
    assert isinstance(diverged, Diverged)
    assert str(diverged) == "returns is not finite; the update was taken back"
