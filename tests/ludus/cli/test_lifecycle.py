"""`ludus run pause | resume | checkpoint | set | changes | branch`."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ludus.cli.exits import Exit
from ludus.cli.run import nested
from ludus.schemas.states import RunState, StopReason
from tests.factories import make_checkpoint
from tests.ludus.cli.conftest import Invoke, as_json
from tests.server.app.world import Trainer, World


@pytest.fixture
def trainer(world: World) -> Iterator[Trainer]:
    trainer = world.claim(world.create()["id"]).start()
    yield trainer
    world.http.post(f"/v1/runs/{trainer.run_id}:cancel")
    if world.http.get(f"/v1/runs/{trainer.run_id}").json()["state"] == "RUNNING":
        trainer.finish(RunState.CANCELLED)


def test_pause_waits_until_the_worker_is_free_and_resume_goes_on(cli: Invoke, trainer: Trainer) -> None:
    def obey() -> None:
        while trainer.ledger.heartbeat(60, 0).intent != "pause":
            pass
        trainer.ledger.move(RunState.PAUSING, reason=StopReason.USER)
        trainer.ledger.move(RunState.PAUSED, reason=StopReason.USER)

    obeying = threading.Thread(target=obey)
    obeying.start()
    paused = cli("run", "pause", trainer.run_id, "--wait", "--timeout", "20")
    obeying.join()

    assert (paused.exit_code, paused.stdout) == (Exit.OK, f"{trainer.run_id} PAUSED\n"), paused.output
    resumed = cli("run", "resume", trainer.run_id, "--set", "CartPole.hyperparameters.learning_rate=1e-4")
    assert resumed.stdout == f"{trainer.run_id} QUEUED\n"
    shown = cli("run", "changes", trainer.run_id).stdout
    assert "behaviors.CartPole.hyperparameters.learning_rate: 0.0003 -> 0.0001" in shown
    again = cli("run", "resume", trainer.run_id)
    assert again.exit_code == Exit.REFUSED
    assert "is QUEUED, not PAUSED: there is nothing to resume" in again.stderr


def test_a_pause_that_does_not_come_in_time_is_told(cli: Invoke, trainer: Trainer) -> None:
    asked = cli("run", "pause", trainer.run_id)
    assert asked.stdout == f"{trainer.run_id} RUNNING, pause asked for\n"

    late = cli("run", "pause", trainer.run_id, "--wait", "--timeout", "0.1")

    assert late.exit_code == Exit.TIMED_OUT
    assert "it will still pause" in late.stderr


def test_checkpoint_prints_the_id_alone_for_scripts(cli: Invoke, trainer: Trainer) -> None:
    saved: list[str] = []

    def obey() -> None:
        while trainer.ledger.checkpoints.requested() is None:
            pass
        saved.append(trainer.ledger.checkpoints.add(make_checkpoint(700, path="now"), 1))

    obeying = threading.Thread(target=obey)
    obeying.start()
    result = cli("run", "checkpoint", trainer.run_id)
    obeying.join()

    assert (result.exit_code, result.stdout) == (Exit.OK, f"{saved[0]}\n"), result.output


def test_a_checkpoint_that_cannot_be_written_is_a_failure(cli: Invoke, trainer: Trainer, world: World) -> None:
    waiting = world.create()["id"]
    refused = cli("run", "checkpoint", waiting)
    assert refused.exit_code == Exit.REFUSED
    assert "only a RUNNING run can write a checkpoint" in refused.stderr
    world.http.post(f"/v1/runs/{waiting}:cancel")

    late = cli("run", "checkpoint", trainer.run_id, "--timeout", "0.1")
    assert late.exit_code == Exit.REFUSED
    assert "there is none after 0.1 s; the trainer still owes request 1" in late.stderr

    trainer.ledger.checkpoints.decline(1, "no space is left")
    request = world.http.get(f"/v1/runs/{trainer.run_id}/checkpoint_requests/1").json()
    assert request["problem"] == "no space is left"


def test_set_changes_numbers_and_names_what_it_cannot(cli: Invoke, trainer: Trainer) -> None:
    done = cli("run", "set", trainer.run_id, "CartPole.hyperparameters.beta=0.01", "behaviors.CartPole.max_steps=5e3")

    assert done.exit_code == Exit.OK, done.output
    assert "behaviors.CartPole.max_steps: 10000 -> 5000" in done.stdout
    assert "behaviors.CartPole.hyperparameters.beta: 0.005 -> 0.01" in done.stdout
    assert "the trainer has not applied it yet" in done.stdout

    wrong = cli("run", "set", trainer.run_id, "CartPole.time_horizon=3", "CartPole.max_steps=-1")
    assert wrong.exit_code == Exit.REFUSED
    assert "2 mistakes [invalid_edit]" in wrong.stderr
    assert "  behaviors.CartPole.time_horizon: cannot be changed in a live run" in wrong.stderr
    assert len(as_json(cli("run", "changes", trainer.run_id, "--json"))["amendments"]) == 1


def test_nothing_was_changed(cli: Invoke, trainer: Trainer) -> None:
    assert cli("run", "changes", trainer.run_id).stdout == "Nothing in the run's configuration was changed.\n"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("Walker.max_steps", {"Walker": {"max_steps": 1}}),
        ("behaviors.Walker.max_steps", {"Walker": {"max_steps": 1}}),
        ("Walker.hyperparameters.beta", {"Walker": {"hyperparameters": {"beta": 1}}}),
        ("Walker.divergence.stop_kl_above", {"Walker": {"divergence": {"stop_kl_above": 1}}}),
        ('"my.bot".max_steps', {"my.bot": {"max_steps": 1}}),
    ],
)
def test_a_path_names_a_behavior_and_its_key(path: str, expected: dict[str, Any]) -> None:
    assert nested([(path, 1)]) == expected


@pytest.mark.parametrize("path", ["max_steps", "Walker.learning_rate.x", "a.b.c.d"])
def test_a_path_that_names_no_key_is_a_mistake_of_the_command_line(cli: Invoke, trainer: Trainer, path: str) -> None:
    result = cli("run", "set", trainer.run_id, f"{path}=1")

    assert result.exit_code == Exit.USAGE
    assert "names no key of a behavior" in result.stderr


def test_a_branch_is_configured_like_its_origin_and_begins_with_its_checkpoint(
    cli: Invoke, trainer: Trainer, tmp_path: Path, world: World
) -> None:
    saved = trainer.save(700, {"state.json": b"{}"}, tmp_path)
    cli("run", "set", trainer.run_id, "CartPole.hyperparameters.beta=0.01")

    anew = as_json(
        cli("run", "branch", trainer.run_id, "--set", "behaviors.CartPole.max_steps=77", "--name", "twig", "--json")
    )
    on = as_json(cli("run", "branch", trainer.run_id, "--checkpoint", saved, "--continue", "--json"))

    section, going_on = anew["config"]["behaviors"]["CartPole"], on["config"]["behaviors"]["CartPole"]
    assert (anew["name"], section["initialize_from"], section["max_steps"]) == ("twig", saved, 77)
    assert section["hyperparameters"]["beta"] == 0.01, "as it is now, not as it was at first"
    assert anew["config"]["checkpoint_settings"]["resume_from"] is None
    assert (on["config"]["checkpoint_settings"]["resume_from"], going_on["initialize_from"]) == (saved, None)
    for run in (anew, on):
        world.http.post(f"/v1/runs/{run['id']}:cancel")


def test_a_run_without_checkpoints_has_no_branches(cli: Invoke, trainer: Trainer) -> None:
    result = cli("run", "branch", trainer.run_id)

    assert result.exit_code == Exit.REFUSED
    assert "checkpoint" in result.stderr
