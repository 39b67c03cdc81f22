"""`ludus recording`, and `ludus run set simulators.record=...`, against a real server."""

from pathlib import Path

import pytest

from ludus.client import Client, NotFound
from ludus.play.recordings.file import summarize
from tests.ludus.cli.conftest import Invoke, as_json
from tests.recordings import SPOILED, store
from tests.server.app.world import World


def test_recordings_are_listed_downloaded_and_deleted(cli: Invoke, world: World, tmp_path: Path) -> None:
    trainer = world.claim(world.create()["id"]).start()
    new = store(trainer, tmp_path)
    copy = tmp_path / "copy.ludusrec"

    listed = cli("recording", "list", trainer.run_id).stdout
    downloaded = cli("recording", "download", trainer.run_id, new.id, "-o", str(copy)).stdout.strip()

    assert listed.splitlines()[1].split()[:5] == [new.id, "3", "native", "error", "malformed_message"]
    assert (downloaded, summarize(copy).end) == (str(copy), SPOILED)
    (record,) = as_json(cli("recording", "list", trainer.run_id, "--json"))
    assert (record["frames"], record["behaviors"]) == (new.frames, ["CartPole"])

    cli("recording", "delete", trainer.run_id, new.id)
    assert as_json(cli("recording", "list", trainer.run_id, "--json")) == []
    with Client(world.server) as client, pytest.raises(NotFound):
        client.recordings.delete(trainer.run_id, new.id)


CHANGES = {
    "true": (("simulators.record=true",), {"share": 1.0}),
    "a share": (("simulators.record=0.25",), {"share": 0.25}),
    "keys": (("simulators.record.share=0.5", "simulators.record.errors=false"), {"share": 0.5, "errors": False}),
    "beside a behavior's key": (("CartPole.max_steps=777", "simulators.record=true"), {"share": 1.0}),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_recorded_is_changed_in_a_live_run(cli: Invoke, world: World, what: str) -> None:
    words, expected = CHANGES[what]
    run = world.create()["id"]

    said = cli("run", "set", run, *words).stdout

    record = world.http.get(f"/v1/runs/{run}").json()["config"]["simulators"]["record"]
    assert {key: record[key] for key in expected} == expected
    assert "simulators.record.share: 0.0 ->" in said


@pytest.mark.parametrize("word", ["simulators.record=2", "simulators.record.share=many", "simulators.record.shard=1"])
def test_a_bad_value_is_refused_with_its_path_and_changes_nothing(cli: Invoke, world: World, word: str) -> None:
    run = world.create()["id"]

    done = cli("run", "set", run, word)

    assert done.exit_code != 0
    assert "simulators.record" in done.output
    assert world.http.get(f"/v1/runs/{run}").json()["config"]["simulators"]["record"]["share"] == 0.0
