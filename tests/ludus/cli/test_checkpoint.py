"""`ludus checkpoint` and the client's methods for uploaded checkpoints, against a real server."""

from pathlib import Path

import pytest

from ludus.cli import exits
from ludus.client import Client, NotFound, ProblemAnswer
from ludus.schemas import OnnxModel, OnnxTensor
from tests.factories import make_checkpoint, make_ledger, save_checkpoints
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


def test_a_model_is_shown_with_what_a_game_must_know_to_load_it(cli: Invoke, world: World, tmp_path: Path) -> None:
    model = OnnxModel(
        behavior="CartPole",
        opset=9,
        inputs=(
            OnnxTensor(name="obs_0", dtype="float32", shape=("batch", 8)),
            OnnxTensor(name="action_masks", dtype="float32", shape=("batch", 5)),
        ),
        outputs=(OnnxTensor(name="memory_size", dtype="float32", shape=(1,)),),
        continuous_actions=2,
        discrete_branches=(3, 2),
        action_masks=True,
        memory_size=128,
    )
    trainer = world.claim(world.create(name="described")["id"]).start()
    files = {"CartPole.onnx": b"model", "state.json": b"{}"}
    checkpoint = trainer.save(100, files, tmp_path, models={"CartPole.onnx": model})
    undescribed = trainer.save(200, files, tmp_path)

    shown = cli("checkpoint", "show", checkpoint, "--run", "described").stdout

    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert lines[lines.index("file CartPole.onnx 5 B") + 1 :][:8] == [
        "behavior CartPole",
        "opset 9",
        "continuous actions 2",
        "discrete branches 3, 2 choices, with masks",
        "memory size 128",
        "input obs_0 float32 (batch, 8)",
        "input action_masks float32 (batch, 5)",
        "output memory_size float32 (1)",
    ]
    assert "file state.json 2 B" in lines
    with Client(world.server) as client:
        assert [file.model for file in client.checkpoints.get("described", checkpoint).files] == [model, None]
        assert [file.model for file in client.checkpoints.get("described", undescribed).files] == [None, None]
        assert client.checkpoints.verify("described", checkpoint).checkpoint.files[0].model == model


def test_the_history_of_an_alias_is_listed_after_its_deletion(cli: Invoke, world: World) -> None:
    first, second = save_checkpoints(world.services.database, 100, 200)
    cli("checkpoint", "alias", "set", "shown-champion", first)
    cli("checkpoint", "alias", "set", "shown-champion", second)
    listed = cli("checkpoint", "alias", "list").stdout
    cli("checkpoint", "alias", "delete", "shown-champion")

    lines = cli("checkpoint", "alias", "history", "shown-champion").stdout.splitlines()
    newest = as_json(cli("checkpoint", "alias", "history", "shown-champion", "--limit", "1", "--json"))

    (shown,) = [line for line in listed.splitlines() if "shown-champion" in line]
    assert shown.endswith("anonymous loopback")
    assert lines[0].split() == ["VERSION", "CHECKPOINT", "MOVED", "MOVED", "BY"]
    assert [line.split()[:2] for line in lines[1:]] == [["3", "(deleted)"], ["2", second], ["1", first]]
    assert [(move["version"], move["checkpoint_id"], move["moved_by"]) for move in newest] == [
        (3, None, "anonymous loopback")
    ]


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
