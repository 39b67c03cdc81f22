"""The Python SDK passes the compliance kit."""

import pytest

from ludus.sdk import SimulatorError, connect
from ludus.sdk.contract.kit import RUN, SCENARIOS, Scenario, evaluate, serve
from tests.toys.catch import Catch


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_python_client(scenario: Scenario) -> None:
    with serve(scenario) as server:
        try:
            succeeded = connect(Catch(), run=RUN, server=server.address).finished
        except SimulatorError:
            succeeded = False

    assert [*evaluate(scenario, server, succeeded=succeeded, ending="an error")] == []
