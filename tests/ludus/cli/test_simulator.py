"""`ludus simulator`: who plays in which run, and who left."""

import pytest

from tests.ludus.cli.conftest import Invoke, as_json
from tests.server.app.world import World


@pytest.fixture(scope="module")
def runs(world: World) -> list[str]:
    """Two runs: each has a connected simulator and one that left."""
    names = ["first", "second"]
    for name in names:
        trainer = world.claim(world.create(name=name)["id"]).start()
        for number, session_id in enumerate(("here", "gone")):
            trainer.ledger.simulators.connected(session_id, number=number, collector=0, label=f"{name}-{session_id}")
        trainer.ledger.simulators.left("gone", code="shape_mismatch", reason="obs_0 has another shape.", steps=12)
    return names


def labels(answer: list[dict[str, str]]) -> list[str]:
    return [each["label"] for each in answer]


def test_simulators_of_all_runs_are_listed_with_the_names_of_their_runs(cli: Invoke, runs: list[str]) -> None:
    shown = cli("simulator", "list", "--state", "connected").stdout.splitlines()

    assert shown[0].split()[:3] == ["RUN", "SESSION", "LABEL"]
    assert [line.split()[:3] for line in shown[1:]] == [[name, "here", f"{name}-here"] for name in reversed(runs)]


def test_simulators_are_listed_by_run_and_by_the_reason_why_they_left(cli: Invoke, runs: list[str]) -> None:
    of_one = as_json(cli("simulator", "list", "--run", "first", "--json"))
    by_code = as_json(cli("simulator", "list", "--filter", "leave_code = shape_mismatch", "--json"))

    assert sorted(labels(of_one)) == ["first-gone", "first-here"]
    assert sorted(labels(by_code)) == ["first-gone", "second-gone"]


def test_those_that_left_lately_are_listed_newest_first(cli: Invoke, runs: list[str]) -> None:
    lately = as_json(cli("simulator", "list", "--left-within", "10m", "--json"))

    assert labels(lately) == ["second-gone", "first-gone"]
    assert as_json(cli("simulator", "list", "--left-within", "0s", "--json")) == []
