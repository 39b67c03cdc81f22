"""`ludus checkpoint` and the client's methods for uploaded checkpoints, against a real server."""

from pathlib import Path

import pytest

from ludus.cli import exits
from ludus.client import Client, NotFound, ProblemAnswer
from tests.factories import make_checkpoint, make_ledger
from tests.ludus.cli.conftest import Invoke, as_json
from tests.server.app.world import World

FILE = Path(__file__).parents[2] / "data" / "mlagents-results" / "sac-replay-buffer" / "checkpoint.pt"
UNKNOWN = f"ckpt_{'0' * 26}"


def test_a_checkpoint_is_uploaded_listed_and_shown(cli: Invoke) -> None:
    uploaded = cli("checkpoint", "upload", str(FILE), "--name", "striker", "--behavior", "Striker").stdout.strip()
    listed = cli("checkpoint", "list").stdout
    shown = cli("checkpoint", "show", uploaded).stdout

    assert listed.splitlines()[0].lower().split() == ["id", "name", "behavior", "size", "created"]
    assert listed.splitlines()[1].split()[:3] == [uploaded, "striker", "Striker"]
    facts = dict(line.split(maxsplit=1) for line in shown.splitlines())
    assert (facts["id"], facts["format"]) == (uploaded, "mlagents")
    assert facts["modules"].startswith("Policy, Optimizer:q_network")
    assert uploaded in [each["id"] for each in as_json(cli("checkpoint", "list", "--json"))]
    assert as_json(cli("checkpoint", "show", uploaded, "--json"))["size"] == FILE.stat().st_size


def test_several_are_uploaded_under_the_files_names(cli: Invoke) -> None:
    stored = as_json(cli("checkpoint", "upload", str(FILE), str(FILE), "--json"))

    assert [each["name"] for each in stored] == ["checkpoint", "checkpoint"]
    assert len({each["id"] for each in stored}) == 2


def test_one_of_a_run_is_shown_with_its_files(cli: Invoke, world: World) -> None:
    ledger = make_ledger(world.services.database, name="shown")
    checkpoint = ledger.checkpoints.add(make_checkpoint(1000, steps={"CartPole": 1000}))

    shown = cli("checkpoint", "show", checkpoint, "--run", "shown").stdout

    assert "step of CartPole" in shown
    assert checkpoint in cli("checkpoint", "list", "shown").stdout
    assert as_json(cli("checkpoint", "show", "latest", "--run", "shown", "--json"))["id"] == checkpoint


def test_it_is_deleted_unless_a_run_begins_with_it(cli: Invoke, world: World) -> None:
    uploaded = cli("checkpoint", "upload", str(FILE)).stdout.strip()
    with Client(world.server) as client:
        run = client.runs.create({"behaviors": {"A": {"initialize_from": uploaded}}}).id

        refused = cli("checkpoint", "delete", uploaded)
        client.runs.cancel(run)
        gone = cli("checkpoint", "delete", uploaded)

        assert refused.exit_code == exits.Exit.REFUSED
        assert f"is used by run {run}" in refused.stderr
        assert gone.exit_code == 0
        with pytest.raises(NotFound):
            client.uploaded_checkpoints.get(uploaded)


def test_what_is_wrong_is_a_sentence_and_an_exit_code(cli: Invoke, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no checkpoint")

    refused = cli("checkpoint", "upload", str(tmp_path / "model.onnx"))
    missing = cli("checkpoint", "show", UNKNOWN)

    assert (refused.exit_code, missing.exit_code) == (exits.Exit.REFUSED, exits.Exit.REFUSED)
    assert "upload the checkpoint.pt" in refused.stderr
    assert UNKNOWN in missing.stderr


def test_the_client_lists_by_filter_and_repeats_an_upload_without_effect(world: World) -> None:
    with Client(world.server) as client:
        first, second = (
            client.uploaded_checkpoints.upload(FILE, name="repeated", behavior="Goalie", idempotency_key="upload-twice")
            for _ in range(2)
        )

        assert first == second
        assert first.created_at.tzinfo is not None
        assert [each.id for each in client.uploaded_checkpoints.list("name = repeated")] == [first.id]
        with pytest.raises(ProblemAnswer, match="there is no checkpoint"):
            client.runs.create({"behaviors": {"A": {"initialize_from": UNKNOWN}}})
