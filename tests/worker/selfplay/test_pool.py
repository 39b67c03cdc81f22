"""The ring of snapshots."""

import numpy as np

from worker.selfplay.pool import SnapshotPool


def filled(window: int, count: int) -> SnapshotPool:
    pool = SnapshotPool(window)
    for step in range(count):
        pool.save(10 * step, np.full(3, step, np.float32))
    return pool


def test_the_newest_are_kept_under_numbers_that_count_on() -> None:
    pool = filled(3, 5)

    assert [(one.number, one.step, one.weights[0]) for one in pool.snapshots] == [(2, 20, 2), (3, 30, 3), (4, 40, 4)]


def test_a_pool_goes_on_from_its_state_and_a_smaller_one_keeps_the_newest() -> None:
    state = filled(3, 5).state_dict()
    same, smaller = SnapshotPool(3), SnapshotPool(1)
    for pool in (same, smaller):
        pool.load_state_dict(state)

    assert [one.number for one in same.snapshots] == [2, 3, 4]
    assert [one.number for one in smaller.snapshots] == [4]
    assert same.save(50, np.zeros(3, np.float32)).number == 5
