"""A developer's mistake: runs without games hold the only slot, and the game of another run is there."""

from pathlib import Path

import pytest

from tests.e2e.stack import LudusUp, Player, cartpole, wait_for_step
from tests.waiting import eventually


@pytest.mark.e2e
@pytest.mark.long
def test_a_run_without_a_game_lends_the_only_slot_to_one_whose_game_waits_and_goes_on_after_it(tmp_path: Path) -> None:
    up = LudusUp(tmp_path, LUDUS_WORKER__SLOTS="1")
    players = []
    try:
        with up.client() as client:
            first, second, third = (client.runs.create(cartpole(1000), name=name) for name in ("a", "b", "c"))
            eventually(lambda: client.runs.get(first.id).state == "STARTING", "the first run has the slot")

            players.append(Player(up, third.id))
            eventually(
                lambda: "held by run c" in (client.runs.get(first.id).waits_for or ""), "it says what it waits for"
            )
            assert client.runs.wait(third.id, timeout=60).state == "SUCCEEDED", "long before the first one's grace ends"

            events = {event.type: event for event in client.events.list(first.id) if event.attempt == 1}
            assert "Slot lent to run c, whose game waits" in events["slot_lent"].message
            assert "run_recovering" not in events
            assert {event.type for event in client.events.list(second.id)} == {"run_created"}, "its turn has not come"
            eventually(lambda: client.runs.get(first.id).state == "STARTING", "the first run has the slot again")
            assert client.runs.get(first.id).attempt == 2
            players.append(Player(up, first.id))
            wait_for_step(client, first, 500)
            players.append(Player(up, second.id))
            assert client.runs.wait(first.id, timeout=60).state == "SUCCEEDED"
            assert client.runs.wait(second.id, timeout=60).state == "SUCCEEDED"
            assert [event.type for event in client.events.list(first.id)].count("slot_lent") == 1
    finally:
        for player in players:
            player.kill()
        up.interrupt()
        up.stop()
