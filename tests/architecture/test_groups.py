"""Tests of one group are run by one process, where `make test` spreads the tests over several."""

import pytest


@pytest.mark.xdist_group("of its own")
def test_the_scheduler_is_told_of_which_group_a_test_is(request: pytest.FixtureRequest) -> None:
    grouped = bool(request.config.getoption("loadgroup", False))

    assert request.node.nodeid.endswith("@of its own") is grouped
