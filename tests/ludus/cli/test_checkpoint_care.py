"""`ludus checkpoint pin | unpin | score | verify | prune` against a real server."""

from pathlib import Path

import pytest

from tests.ludus.cli.conftest import Invoke, as_json
from tests.server.app.world import World


@pytest.mark.long
def test_what_is_kept_is_sound_and_may_go_from_the_command_line(world: World, cli: Invoke, tmp_path: Path) -> None:
    trainer = world.claim(world.create(name="cared-for")["id"]).start()
    first, second, third = (trainer.save(step, {"a.onnx": b"model"}, tmp_path) for step in (100, 200, 300))

    assert cli("checkpoint", "pin", "cared-for", first).stdout.strip() == first
    assert "pinned" in cli("checkpoint", "list", "cared-for").stdout
    assert as_json(cli("checkpoint", "score", "cared-for", second, "win_rate", "0.8", "--json"))["scores"] == {
        "": {"win_rate": 0.8}
    }
    planned = as_json(cli("checkpoint", "prune", "--max-bytes", "0", "--dry-run", "--json"))
    assert [each["id"] for each in planned["checkpoints"]] == [second]
    assert "Would delete 1 checkpoints, 5 B" in cli("checkpoint", "prune", "--max-bytes", "0", "--dry-run").stdout
    assert cli("checkpoint", "unpin", "cared-for", first).exit_code == 0
    assert cli("checkpoint", "verify", "cared-for").stdout.count("sound") == 3

    file = world.services.settings.storage.root / f"runs/{trainer.run_id}/1/checkpoints/300/a.onnx"
    file.write_bytes(b"mode!")
    damaged = cli("checkpoint", "verify", "cared-for")

    assert damaged.exit_code == 1
    assert third in damaged.stderr
    assert "a.onnx has the SHA-256" in damaged.stdout
    assert "damaged: a.onnx" in cli("checkpoint", "show", third, "--run", "cared-for").stdout
    assert cli("checkpoint", "pin", "cared-for").stdout.strip() == second, "latest is the newest good one"
    assert "Deleted" in cli("checkpoint", "prune", "--older-than", "1d").stdout
