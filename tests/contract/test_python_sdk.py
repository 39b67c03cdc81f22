"""The Python SDK passes the compliance kit."""

import pytest

from ludus.sdk import SimulatorError, connect
from tests.contract.scenarios import SCENARIOS, Scenario
from tests.fakes import FakeServer
from tests.toys.catch import Catch


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_python_client(scenario: Scenario) -> None:
    with FakeServer(*scenario.scripts, join=scenario.join) as server:
        try:
            succeeded = connect(Catch(), run="contract", server=server.address).finished
        except SimulatorError:
            succeeded = False

    assert server.violations == []
    assert len(server.streams) == len(scenario.scripts)
    assert scenario.least_joins <= len(server.joins) <= scenario.most_joins
    assert succeeded is scenario.succeeds
    scenario.check(server)
