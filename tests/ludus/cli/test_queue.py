"""`ludus queue`: what waits, by demand."""

from tests.ludus.cli.conftest import Invoke, as_json
from tests.server.app.world import World


def test_waiting_runs_are_shown_by_demand_with_the_reason_where_no_slot_serves_them(world: World, cli: Invoke) -> None:
    config = {"behaviors": {"CartPole": {}}, "resources": {"gpu": 7, "labels": ["cli"]}}
    world.create(config)

    shown = cli("queue", "--demand", "7;cli").stdout.splitlines()

    assert shown[0].split()[:3] == ["DEMAND", "RUNS", "STARTABLE"]
    assert shown[1].split()[:3] == ["7;cli", "1", "1"]
    assert "7;cli: No worker" in shown[2]
    assert as_json(cli("queue", "--demand", "7;cli", "--json"))["missing_slots"] == 1
    assert cli("queue", "--demand", "63").stdout == "No run waits for a worker.\n"


def test_an_unknown_pool_gets_a_sentence(cli: Invoke) -> None:
    refused = cli("queue", "--pool", "gpus")

    assert (refused.exit_code, "LUDUS_SCHEDULING__POOLS" in refused.stderr) == (1, True)
