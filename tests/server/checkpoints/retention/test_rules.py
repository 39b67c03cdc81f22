"""Which checkpoints go: the newest good one, the best and what is held never do."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from server.checkpoints.retention.repository import Candidate, beyond_age, beyond_count, beyond_size, spared


def checkpoint(step: int, **overrides: object) -> Candidate:
    made = Candidate(
        id=f"ckpt_{step}",
        run_id="run_1",
        order=(1, step, float(step), f"ckpt_{step}"),
        created_at=float(step),
        step=step,
        size=10,
        final=False,
        score=None,
        damaged=False,
        held=False,
    )
    return replace(made, **overrides)  # type: ignore[arg-type]


def steps(found: list[Candidate]) -> list[int]:
    return [each.step for each in found]


def test_the_newest_k_stay() -> None:
    every = [checkpoint(step) for step in (100, 200, 300, 400)]

    assert steps(beyond_count(every, 2, 0)) == [100, 200]
    assert beyond_count(every, 4, 0) == beyond_count(every, 0, 0) == []


def test_the_best_k_stay_beside_the_newest_and_of_equals_the_newer() -> None:
    every = [checkpoint(step, score=score) for step, score in ((100, 7.0), (200, 9.0), (300, 7.0), (400, 1.0))]

    assert steps(beyond_count(every, 1, 1)) == [100, 300]
    assert steps(beyond_count(every, 1, 2)) == [100]


def test_final_and_held_ones_stay() -> None:
    every = [checkpoint(100, held=True), checkpoint(200, final=True), checkpoint(300), checkpoint(400)]

    assert steps(beyond_count(every, 1, 0)) == [300]


def test_a_damaged_one_neither_counts_as_newest_nor_as_best() -> None:
    every = [checkpoint(100), checkpoint(200, damaged=True), checkpoint(300), checkpoint(400, damaged=True, score=9.0)]

    assert steps(beyond_count(every, 1, 1)) == [100, 200]
    assert spared(every, 1) == {"ckpt_300"}


def test_the_newest_of_a_later_attempt_is_newest_even_at_a_lower_step() -> None:
    first, second = checkpoint(300), checkpoint(200, order=(2, 200, 500.0, "ckpt_200"))

    assert spared([first, second], 0) == {"ckpt_200"}


def test_age_and_size_take_the_oldest_first_and_no_more_than_they_must() -> None:
    every = [checkpoint(step) for step in (300, 100, 400, 200)]

    assert steps(beyond_age(every, {"ckpt_100"}, before=300.0)) == [200]
    assert steps(beyond_size(every, {"ckpt_100"}, limit=25)) == [200, 300]
    assert beyond_size(every, set(), limit=40) == []
    assert steps(beyond_size(every, {"ckpt_400"}, limit=0)) == [100, 200, 300]


candidates = st.lists(
    st.builds(
        checkpoint,
        st.integers(1, 50),
        score=st.none() | st.floats(-5, 5),
        damaged=st.booleans(),
        held=st.booleans(),
        final=st.booleans(),
    ),
    unique_by=lambda each: each.step,
)


@given(candidates, st.integers(1, 5), st.integers(0, 3), st.integers(0, 200))
def test_no_rule_takes_what_is_spared(every: list[Candidate], keep: int, best: int, limit: int) -> None:
    stay = spared(every, best)
    good = [each for each in every if not each.damaged]

    for gone in (beyond_count(every, keep, best), beyond_age(every, stay, 60.0), beyond_size(every, stay, limit)):
        assert not stay & {each.id for each in gone}
        assert not good or max(good, key=lambda each: each.order) not in gone
        assert not any(each.held for each in gone)
    left = [each for each in every if each not in beyond_count(every, keep, best)]
    assert len([each for each in left if not each.damaged]) >= min(keep, len(good))
