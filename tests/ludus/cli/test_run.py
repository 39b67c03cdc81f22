import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from ludus.cli import ludus
from ludus.cli.exits import INTERRUPTED, Exit
from ludus.cli.run import nested
from ludus.schemas import STEPS_PER_SECOND
from ludus.schemas.states import RunState, StopReason
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import RunQueue
from server.metrics.points import MetricPoint
from server.runs.refs import EdgeCollectorRef
from tests.factories import make_checkpoint, pack_metrics
from tests.ludus.cli.conftest import Invoke, as_json, printed
from tests.server.app.world import CARTPOLE, Trainer, World
from tests.server.runs.test_diagnosis import SPENT
from tests.server.runs.test_health import ENDLESS, ZERO
from tests.waiting import eventually, never

REWARD = "Environment/Cumulative Reward"


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "ppo.yaml"
    path.write_text(yaml.safe_dump(CARTPOLE))
    return str(path)


def test_create_prints_the_id_alone_for_scripts(cli: Invoke, config: str, world: World) -> None:
    result = cli(
        "run", "create", config, "--name", "scripted", "--tag", "ci", "--set", "behaviors.CartPole.max_steps=77"
    )

    run = world.http.get(f"/v1/runs/{result.stdout.strip()}").json()
    assert result.exit_code == Exit.OK
    assert (run["name"], run["tags"]) == ("scripted", ["ci"])
    assert run["config"]["behaviors"]["CartPole"]["max_steps"] == 77


def test_create_reads_standard_input_and_stored_configurations(cli: Invoke, config: str) -> None:
    assert cli("config", "create", "stored", config).stdout.strip() == "stored@1"

    from_input = as_json(cli("run", "create", "-", "--json", input="behaviors: {X: {}}"))
    from_store = as_json(cli("run", "create", "--config", "stored@1", "--json"))

    assert list(from_input["config"]["behaviors"]) == ["X"]
    assert (from_store["config_name"], from_store["config_version"]) == ("stored", 1)


def test_a_seed_is_an_option_of_its_own(cli: Invoke, config: str) -> None:
    seeded = as_json(cli("run", "create", config, "--seed", "17", "--json"))
    assert seeded["config"]["seed"] == 17


def test_validate_only_prints_every_default(cli: Invoke, config: str) -> None:
    result = cli("run", "create", config, "--validate-only")

    hyperparameters = yaml.safe_load(result.stdout)["behaviors"]["CartPole"]["hyperparameters"]
    assert (hyperparameters["buffer_size"], hyperparameters["num_epoch"]) == (1024, 3)


def test_mistakes_in_a_configuration_come_one_a_line(cli: Invoke) -> None:
    result = cli("run", "create", "-", input="behaviors: {X: {max_stepz: 1, time_horizon: long}}")

    assert result.exit_code == Exit.REFUSED
    assert "2 mistakes [invalid_config]" in result.stderr
    assert "<stdin>:1: behaviors.X.max_stepz: " in result.stderr
    assert "max_steps" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "create"],
        ["run", "create", "-", "--config", "x"],
        ["run", "create", "--config", "x@newest"],
        ["run", "create", "-", "--set", "no-value"],
        ["run", "create", "-", "--set", "a.b=[1"],
        ["run", "create", "/no/such/file.yaml"],
        ["run", "wait", "x", "--require", "reward is good"],
        ["run", "wait", "x", "--require", "reward>=many"],
        ["run", "list", "--limit", "0"],
    ],
)
def test_a_wrong_command_line_is_usage(cli: Invoke, arguments: list[str]) -> None:
    result = cli(*arguments, input="")

    assert result.exit_code == Exit.USAGE
    assert "Error: " in result.stderr


def test_list_filters_and_shows_a_table(cli: Invoke, world: World) -> None:
    first, second = world.create(name="listed-a", tags=["listed"]), world.create(name="listed-b", tags=["listed"])

    table = cli("run", "list", "--tag", "listed", "--state", "queued").stdout.splitlines()
    by_name = as_json(cli("run", "list", "--filter", 'name = "listed-*"', "--order-by", "name", "--json"))

    assert table[0].split() == ["ID", "NAME", "STATE", "REASON", "STEPS", "DONE", "CREATED", "TAGS"]
    assert [line.split()[1] for line in table[1:]] == ["listed-b", "listed-a"]
    assert [run["id"] for run in by_name] == [first["id"], second["id"]]


def test_names_that_differ_at_their_end_alone_are_told_apart_in_a_narrow_terminal(
    cli: Invoke, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = [f"{'n' * 190}-{end}" for end in ("first", "other")]
    runs = [world.create(name=name)["id"] for name in names]

    table = cli("run", "list", "--filter", f"name = {names[0][:100]}*").stdout.split()
    shown = cli("run", "show", runs[0]).stdout.split()

    assert set(names) <= set(table)
    assert names[0] in shown


def facts(text: str) -> dict[str, str]:
    """Return the values that `show` prints before its tables, by their names."""
    lines = text[: text.index("\n\n")].splitlines()
    return {name: value.strip() for name, _, value in (line.partition("  ") for line in lines)}


def test_list_and_show_tell_how_far_a_run_is_how_fast_and_when_it_ends(cli: Invoke, world: World) -> None:
    trainer = world.claim(world.create(name="fast")["id"]).start()
    trainer.ledger.heartbeat(60, 2500)
    trainer.ledger.metrics.append([MetricPoint("CartPole", STEPS_PER_SECOND, 2500, time.time(), 2.5)])
    trainer.ledger.simulators.connected("one", number=0, collector=0)

    head, line = cli("run", "list", "--filter", "name = fast").stdout.splitlines()
    text = cli("run", "show", "fast").stdout

    columns = dict(zip(re.split(r"  +", head), re.split(r"  +", line), strict=False))
    assert (columns["STEPS"], columns["DONE"], columns["SIMULATORS"], columns["STEPS/S"]) == ("2,500", "25%", "1", "2")
    assert facts(text).items() >= {"steps": "2,500 of 10,000 (25%)", "steps/s": "2"}.items()
    for left in (columns["LEFT"], facts(text)["left"]):
        assert re.fullmatch(r"(49|50)m \d+s", left)


def test_a_wrong_filter_says_where(cli: Invoke) -> None:
    result = cli("run", "list", "--filter", "stat = RUNNING")

    assert result.exit_code == Exit.REFUSED
    assert "position 0" in result.stderr


def test_show_tells_the_essentials(cli: Invoke, world: World) -> None:
    trainer = world.claim(world.create(name="shown")["id"]).start()
    trainer.measure(REWARD, [12.5])
    trainer.ledger.simulators.connected("one", number=0, collector=0)
    trainer.ledger.simulators.plays("one", ["CartPole"], 4)

    text = cli("run", "show", "shown").stdout

    assert "RUNNING" in text
    assert "1 connected, 4 agents" in text
    assert "12.5" in text
    assert "run_started" in text
    assert as_json(cli("run", "show", "shown", "--json"))["id"] == trainer.run_id
    assert "max_steps: 10000" in cli("run", "show", "shown", "--config").stdout


def test_show_tells_of_a_live_run_its_self_play_its_edge_collectors_and_what_holds_it_back(
    cli: Invoke, world: World
) -> None:
    trainer = world.claim(world.create(name="live")["id"]).start()
    before = facts(cli("run", "show", "live").stdout)
    now = time.time()
    slow = EdgeCollectorRef(2, "slow", "ipv4:10.0.0.8:4711", now, now, 64 << 20)
    trainer.ledger.self_play(1, {"Striker": 1204.26, "Goalie": 1195.0})
    trainer.ledger.collectors.publish([EdgeCollectorRef(1, "desk-7", "ipv4:10.0.0.7:4711", now), slow])
    trainer.ledger.simulators.connected("sim-0", number=0, collector=1)
    trainer.ledger.heartbeat(60, 1, SPENT)

    after = facts(cli("run", "show", "live").stdout)

    told = {"learning team", "training Elo", "edge collector 1", "edge collector 2", "bottleneck"}
    assert after.keys() >= told
    assert before.keys().isdisjoint(told)
    assert (after["learning team"], after["training Elo"]) == ("1", "Striker 1204.3, Goalie 1195.0")
    assert "desk-7 (ipv4:10.0.0.7:4711), 1 simulators, joined" in after["edge collector 1"]
    assert "64 MiB waited" in after["edge collector 2"]
    assert "The games take 75% of the simulators' time" in after["bottleneck"]
    assert "100 steps/s could be 400 without that: start more simulators" in after["bottleneck"]
    elo = {"Striker": 1204.26, "Goalie": 1195.0}
    assert as_json(cli("run", "show", "live", "--json"))["self_play"] == {"learning_team": 1, "elo": elo}


def test_stop_and_cancel_say_what_they_did(cli: Invoke, world: World) -> None:
    waiting, live = world.create(), world.create()
    world.claim(live["id"]).start()

    assert cli("run", "stop", live["id"]).stdout.strip() == f"{live['id']} RUNNING, stop asked for"
    assert "CANCELLED" in cli("run", "cancel", waiting["id"]).stdout


@pytest.mark.parametrize("command", ["stop", "cancel"])
@pytest.mark.parametrize("state", [RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED])
def test_to_end_a_run_that_has_ended_is_no_error_and_changes_nothing(
    cli: Invoke, world: World, command: str, state: RunState
) -> None:
    trainer = world.claim(world.create()["id"]).start()
    trainer.finish(state, reason=StopReason.DIVERGED)

    again = cli("run", command, trainer.run_id)

    assert again.exit_code == Exit.OK
    assert again.stdout.strip() == f"{trainer.run_id} {state}"


@pytest.mark.parametrize(
    ("state", "reason", "code"),
    [
        (RunState.SUCCEEDED, None, Exit.OK),
        (RunState.FAILED, StopReason.DIVERGED, Exit.RUN_FAILED),
        (RunState.CANCELLED, StopReason.USER, Exit.RUN_CANCELLED),
    ],
)
def test_wait_has_an_exit_code_for_each_end(
    cli: Invoke, world: World, state: RunState, reason: StopReason | None, code: Exit
) -> None:
    trainer = world.claim(world.create()["id"]).start()
    threading.Timer(0.2, trainer.finish, [state], {"reason": reason}).start()

    result = cli("run", "wait", trainer.run_id, "--timeout", "20s")

    assert result.exit_code == code
    assert state in result.stderr


@pytest.mark.parametrize(
    ("requirements", "code"),
    [
        (["reward>=20"], Exit.OK),
        (["reward>=20", "length < 100"], Exit.OK),
        (["CartPole:reward > 19.5", "step>=0"], Exit.OK),
        ([f"{REWARD}<=20"], Exit.OK),
        (["reward>20"], Exit.UNMET),
        (["reward>=20", "length>100"], Exit.UNMET),
        (["Other:reward>=0"], Exit.NO_METRIC),
        (["rewardd>=0"], Exit.NO_METRIC),
        (["rewardd>=0", "reward>20"], Exit.UNMET),
    ],
)
def test_wait_judges_the_newest_values(cli: Invoke, world: World, requirements: list[str], code: Exit) -> None:
    trainer = world.claim(world.create()["id"]).start()
    trainer.measure(REWARD, [500.0, 20.0])
    trainer.measure("Environment/Episode Length", [20.0])
    trainer.finish()

    options = [part for requirement in requirements for part in ("--require", requirement)]
    result = cli("run", "wait", trainer.run_id, *options)

    assert result.exit_code == code, result.stderr
    assert ("NOT met" in result.stderr) == (code is Exit.UNMET)


def test_an_unclear_requirement_names_the_behaviors(cli: Invoke, world: World) -> None:
    trainer = world.claim(world.create()["id"]).start()
    trainer.measure(REWARD, [1.0], behavior="CartPole")
    trainer.measure(REWARD, [1.0], behavior="Other")
    trainer.finish()

    result = cli("run", "wait", trainer.run_id, "--require", "reward>=0")

    assert result.exit_code == Exit.NO_METRIC
    assert "CartPole, Other" in result.stderr


def test_wait_prints_its_judgement_as_json(cli: Invoke, world: World) -> None:
    trainer = world.claim(world.create()["id"]).start()
    trainer.measure(REWARD, [1.0])
    trainer.finish()

    found = as_json(cli("run", "wait", trainer.run_id, "--require", "reward>=1", "--json"))

    assert found["run"]["state"] == "SUCCEEDED"
    assert found["requirements"] == [{"require": "reward>=1", "met": True, "reason": "it is 1"}]


def test_watch_in_a_file_has_a_line_for_each_event_and_each_summary_and_no_control_characters(
    cli: Invoke, world: World
) -> None:
    trainer = world.claim(world.create()["id"]).start()

    def train() -> None:
        for number in range(3):
            trainer.measure(REWARD, [float(number)], first=100 * (number + 1))
            eventually(lambda said=f"CartPole reward {number}": said in printed())
        never(lambda: printed().count("CartPole reward") > 3, "something is said although nothing is new", 1)
        trainer.finish()

    thread = threading.Thread(target=train)
    thread.start()
    result = cli("run", "watch", trainer.run_id)
    thread.join()

    lines = result.stdout.splitlines()
    summaries = [line for line in lines if "CartPole reward" in line]
    assert result.exit_code == Exit.OK
    assert "run_created" in result.stdout
    assert lines[-1].startswith(f"{trainer.run_id} SUCCEEDED")
    assert result.stdout.isascii()
    assert result.stdout.replace("\n", "").isprintable()
    assert [line.split("CartPole reward ")[1].split()[0] for line in summaries] == ["0", "1", "2"]
    assert all(re.match(r"\d\d:\d\d:\d\d  ", line) for line in lines[:-1]), "\n".join(lines)


def test_watch_prints_events_as_lines_of_json(cli: Invoke, world: World) -> None:
    run = world.create()
    world.http.post(f"/v1/runs/{run['id']}:cancel")

    result = cli("run", "watch", run["id"], "--json")

    assert result.exit_code == Exit.RUN_CANCELLED
    assert [json.loads(line)["type"] for line in result.stdout.splitlines()] == ["run_created", "run_cancelled"]


@pytest.mark.parametrize("command", [["watch"], ["watch", "--json"], ["wait"], ["logs", "--follow"]])
def test_what_stays_with_a_run_ends_with_its_token(
    cli: Invoke, world: World, tmp_path: Path, command: list[str]
) -> None:
    trainer = world.claim(world.create()["id"]).start()
    trainer.write_log("trainer.log", b"line\n", tmp_path)
    token = world.http.post("/v1/tokens", json={"name": "watcher", "scopes": ["read"]}).json()
    threading.Timer(0.5, world.http.delete, (f"/v1/tokens/{token['id']}",)).start()

    result = cli("run", *command, trainer.run_id, "--token", token["token"])

    assert result.exit_code == Exit.REFUSED
    assert "The token was revoked" in result.stderr


def test_logs_prints_the_trainers_log_of_the_newest_attempt(cli: Invoke, world: World, tmp_path: Path) -> None:
    trainer = world.claim(world.create()["id"]).start()
    none_yet = cli("run", "logs", trainer.run_id)
    trainer.write_log("player.log", b"from the player\n", tmp_path)
    trainer.write_log("trainer.log", b"line\n" * 40_000, tmp_path)
    trainer.finish()

    assert (none_yet.exit_code, "none yet" in none_yet.stderr) == (Exit.REFUSED, True)
    assert cli("run", "logs", trainer.run_id).stdout == "line\n" * 40_000
    assert cli("run", "logs", trainer.run_id, "--name", "player.log", "--follow").stdout == "from the player\n"
    assert cli("run", "logs", trainer.run_id, "--tail", "10").stdout == "line\nline\n"
    assert "player.log" in cli("run", "logs", trainer.run_id, "--list").stdout
    assert cli("run", "logs", trainer.run_id, "--attempt", "9").exit_code == Exit.REFUSED


@pytest.mark.parametrize(
    "command", [["show", "nobody"], ["stop", "nobody"], ["wait", "nobody"], ["watch", "nobody"], ["logs", "nobody"]]
)
def test_an_unknown_run_is_one_sentence(cli: Invoke, command: list[str]) -> None:
    result = cli("run", *command)

    assert result.exit_code == Exit.REFUSED
    assert result.stderr.startswith("Error: There is no run")


@pytest.mark.parametrize("command", ["run list", "audit", "checkpoint alias list", "token self"])
def test_a_server_that_is_not_there_is_one_sentence_with_a_code_of_its_own(command: str) -> None:
    result = CliRunner().invoke(ludus, [*command.split(), "--server", "http://127.0.0.1:9"])

    assert result.exit_code == Exit.UNREACHABLE
    assert "ludus up" in result.stderr
    assert "Traceback" not in result.output


def test_a_plan_warns_of_what_is_probably_not_meant(cli: Invoke) -> None:
    text = "behaviors: {A: {trainer_type: poca, reward_signals: {extrinsic: {}, curiosity: {}}}}"

    plan = cli("run", "create", "-", "--validate-only", input=text)

    assert plan.exit_code == 0
    assert "Warning: behaviors.A.reward_signals.curiosity: " in plan.stderr
    assert "Warning" not in plan.stdout


def test_lessons_are_shown_and_changed(cli: Invoke, world: World) -> None:
    criteria = {"behavior": "CartPole", "threshold": 100}
    lessons = [{"name": "short", "value": 1, "completion_criteria": criteria}, {"name": "long", "value": 2}]
    run = world.create({**CARTPOLE, "environment_parameters": {"pole": {"curriculum": lessons}}})["id"]
    sentence = "pole: lesson 1 of 2 'short': waits for the behavior 'CartPole', which has no trainer yet\n"

    assert cli("run", "lessons", run).stdout == sentence
    asked = cli("run", "set-lesson", run, "pole", "2").stdout
    assert asked == sentence + "pole: lesson 2 was asked for; the trainer has not done it yet\n"
    assert cli("run", "set-parameter", run, "pole", "--", "-3.5").exit_code == 0

    found = as_json(cli("run", "lessons", run, "--json"))
    assert [edit["change"] for edit in found["pending"]] == [{"lesson": 2}, {"value": -3.5}]


def test_lessons_of_a_run_that_has_ended_say_where_it_was_and_how_it_came_there(cli: Invoke, world: World) -> None:
    criteria = {"behavior": "CartPole", "threshold": 100}
    lessons = [{"name": name, "value": 1, "completion_criteria": criteria} for name in ("short", "middle")]
    curriculum = {"curriculum": [*lessons, {"name": "long", "value": 3}]}
    trainer = world.claim(world.create({**CARTPOLE, "environment_parameters": {"pole": curriculum}})["id"]).start()
    never = world.create({**CARTPOLE, "environment_parameters": {"pole": curriculum}})["id"]
    told = {"name": "pole", "lesson": 2, "lessons": 3, "lesson_name": "middle", "value": 1.0, "measure": "reward"}
    told |= {"measured": 61.5, "threshold": 100.0, "waits_for": "lesson 2 of 3 'middle': reward 61.50, needs > 100.00"}
    trainer.ledger.parameters.publish([told], 0)
    trainer.ledger.event("lesson_changed", "Parameter 'pole' is in lesson 'middle'.", data={"parameter": "pole"})
    assert "needs > 100" in cli("run", "lessons", trainer.run_id).stdout
    cli("run", "set-lesson", trainer.run_id, "pole", "3")
    trainer.finish()
    cli("run", "cancel", never)

    after = cli("run", "lessons", trainer.run_id).stdout.splitlines()

    assert after[0] == "pole: ended in lesson 2 of 3 'middle': reward was 61.50, needed > 100.00"
    assert after[1] == "pole: lesson 3 was asked for; the run ended before that"
    assert after[2].endswith("Parameter 'pole' is in lesson 'middle'.")
    assert cli("run", "lessons", never).stdout.startswith("pole: ended in lesson 1 of 3 'short': reward was never")


def test_changing_what_a_run_does_not_have_says_what_it_has(cli: Invoke, world: World) -> None:
    run = world.create({**CARTPOLE, "environment_parameters": {"pole": 1}})["id"]

    result = cli("run", "set-lesson", run, "pole", "tall")

    assert result.exit_code != 0
    assert "parameters.pole.lesson" in result.stderr
    assert 'there is 1 "pole"' in result.stderr
    assert cli("run", "set-parameter", run, "pole", "[").exit_code == 2
    assert cli("run", "lessons", world.create()["id"]).stdout == "The run has no environment parameters.\n"


def test_profile_downloads_the_flame_graph(cli: Invoke, world: World, tmp_path: Path) -> None:
    trainer = world.claim(world.create(name="profiled")["id"]).start()
    target = tmp_path / "graph.svg"

    def make() -> None:
        asked = eventually(trainer.ledger.profiles.requested)
        (made := tmp_path / "made").mkdir()
        (made / "profile-1.svg").write_text("<svg/>")
        path = f"runs/{trainer.run_id}/1/logs/profile-1.svg"
        (stored,) = world.services.artifacts.publish(made / "profile-1.svg", path)
        trainer.ledger.log("profile-1.svg", path, stored.size)
        trainer.ledger.profiles.answer(asked, log="profile-1.svg")

    making = threading.Thread(target=make)
    making.start()
    result = cli("run", "profile", "profiled", "--seconds", "1", "--output", str(target))
    making.join(10)

    assert result.stdout.strip() == str(target)
    assert target.read_text() == "<svg/>"


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        (lambda ledger, _: ledger.move(RunState.SUCCEEDED), "the run is SUCCEEDED"),
        (lambda ledger, _: ledger.release("trainer_lost", "it was killed"), "the attempt ended before its profile"),
        (lambda ledger, asked: ledger.profiles.answer(asked, problem="Permission denied"), "Permission denied"),
    ],
    ids=["the run ends", "the trainer dies", "py-spy may not"],
)
def test_profile_says_why_there_is_none(cli: Invoke, world: World, ending: Callable[..., None], said: str) -> None:
    trainer = world.claim(world.create(name="not-profiled")["id"]).start()
    refusing = threading.Thread(target=lambda: ending(trainer.ledger, eventually(trainer.ledger.profiles.requested)))
    refusing.start()
    result = cli("run", "profile", trainer.run_id)
    refusing.join(10)

    assert result.exit_code == Exit.REFUSED
    assert said in result.stderr


def test_profile_does_not_wait_for_ever_for_a_worker_that_does_not_answer(
    cli: Invoke, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ludus.cli.run_data.PROFILE_SECONDS", 0.0)
    monkeypatch.setattr("ludus.client.backoff.SHORTEST_SECONDS", 30.0)  # the server may be slow, and is not away
    trainer = world.claim(world.create(name="silent")["id"]).start()

    result = cli("run", "profile", trainer.run_id, "--seconds", "1")

    assert result.exit_code == Exit.TIMED_OUT
    assert "has not answered" in result.stderr


def test_the_findings_about_a_run_stand_beside_its_state_while_it_trains_and_after_its_end(
    cli: Invoke, world: World
) -> None:
    trainer = world.claim(world.create(name="unwell")["id"]).start()
    trainer.ledger.health.publish([ZERO, ENDLESS])

    training = cli("run", "show", "unwell").stdout
    trainer.finish()
    ended = cli("run", "show", "unwell").stdout
    listed = cli("run", "list").stdout

    warning = "CartPole: All 654 episodes had a return of exactly 0. Let the game give a reward. (since step 1,000)"
    for text in (training, ended):
        assert next(line for line in text.splitlines() if line.startswith("warning")).split(None, 1)[1] == warning
        assert text.count("\nwarning") == 2
    assert "RUNNING, with warnings" not in training
    assert "SUCCEEDED, with warnings" in ended
    assert "SUCCEEDED, with warnings" in listed


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


FINGERPRINT = {"release": "0.1.0", "commit": "abc", "torch": "2.13.0", "cpu": "EPYC", "gpus": ["H200"]}


def trained(world: World, name: str, values: list[float], config: Any = CARTPOLE, **fields: Any) -> Trainer:
    trainer = world.claim(world.create(config, name=name, **fields)["id"]).start()
    trainer.measure(REWARD, values)
    trainer.finish()
    return trainer


def names(listed: str, column: int = 1) -> list[str]:
    return [line.split()[column] for line in listed.splitlines()[1:]]


def test_runs_are_listed_with_metrics_and_sorted_by_one(cli: Invoke, world: World) -> None:
    trained(world, "steady", [4.0, 5.0, 6.0], tags=["sweep"])
    trained(world, "lucky", [1.0, 90.0, 3.0], tags=["sweep"])
    world.create(name="waiting", tags=["sweep"])
    pack_metrics(world.services.database)  # the controller does: lists are sorted by packed metrics
    listed = ["run", "list", "--tag", "sweep"]

    table = cli(*listed, "--metric", "reward", "--metric", "CartPole:reward@max").stdout.splitlines()
    by_last = cli(*listed, "--metric", "reward", "--order-by", "reward desc").stdout
    by_best = cli(*listed, "--metric", "reward", "--order-by", "reward@max desc").stdout
    by_name = cli(*listed, "--metric", "reward", "--order-by", "name").stdout

    assert "REWARD" in table[0]
    assert "CARTPOLE:REWARD@MAX" in table[0]
    assert next(line.split()[6:8] for line in table if "lucky" in line) == ["3", "90"]
    assert names(by_last) == ["steady", "lucky", "waiting"]
    assert names(by_best) == ["lucky", "steady", "waiting"]
    assert names(by_name) == ["lucky", "steady", "waiting"]
    assert as_json(cli(*listed, "--metric", "reward@min", "--order-by", "reward@min", "--json"))[0]["metrics"] == {
        f"{REWARD}@min": 1.0
    }


@pytest.mark.parametrize("arguments", [["--metric", "reward@best"], ["--order-by", "no_such_field"]])
def test_a_wrong_metric_or_order_is_one_sentence(cli: Invoke, arguments: list[str]) -> None:
    refused = cli("run", "list", *arguments)

    assert refused.exit_code == Exit.REFUSED
    assert refused.stderr.startswith("Error: ")


@pytest.mark.long
def test_diff_shows_what_differs_and_nothing_else(cli: Invoke, world: World) -> None:
    other = {"behaviors": {"CartPole": {**CARTPOLE["behaviors"]["CartPole"], "max_steps": 99, "summary_freq": 10}}}
    first = trained(world, "diff-a", [1.0], {**CARTPOLE, "seed": 1})
    second = world.create({**other, "seed": 1}, name="diff-b")["id"]
    claim = RunQueue(world.services.database).claim("host/1/1", 60, hint=second, fingerprint=FINGERPRINT)
    assert claim is not None
    ledger = AttemptLedger(world.services.database, claim)
    ledger.move(RunState.RUNNING)
    ledger.simulators.connected("one", number=0, collector=0, client="ludus-python/0.1.0 (Linux x86_64, Python 3.11)")

    found = as_json(cli("run", "diff", first.run_id, second, "--json"))
    table = cli("run", "diff", "diff-a", "diff-b").stdout

    assert found["config"] == {
        "behaviors.CartPole.max_steps": [10000, 99],
        "behaviors.CartPole.summary_freq": [1000, 10],
    }
    assert found["metrics"] == {f"CartPole {REWARD}": [1.0, None]}
    assert found["fingerprint"]["gpus"] == [None, ["H200"]]
    assert found["fingerprint"]["simulators"] == [None, ["ludus-python/0.1.0 (Linux x86_64, Python 3.11)"]]
    assert "behaviors.CartPole.max_steps" in table
    assert "time_horizon" not in table
    assert cli("run", "diff", "diff-a", "diff-a").stdout.count("no difference") == 3
    assert "name two runs or more" in cli("run", "diff", "diff-a").stderr
    world.create({**CARTPOLE, "seed": 2}, name="diff-c")
    assert as_json(cli("run", "diff", "diff-a", "diff-b", "diff-c", "--json"))["config"]["seed"] == [1, 1, 2]
    assert "trained on" in cli("run", "show", "diff-b").stdout
    assert cli("run", "diff", "diff-a", "nobody").exit_code == Exit.REFUSED


def test_a_run_is_renamed_tagged_and_deleted(cli: Invoke, world: World) -> None:
    run = trained(world, "typo", [1.0], tags=["ci"]).run_id
    older = trained(world, "kept", [1.0]).run_id

    assert cli("run", "rename", "typo", "kept").stdout == f"{run} kept\n"
    assert cli("run", "tag", run, "best", "v2", "--remove", "ci").stdout == "best, v2\n"
    assert cli("run", "tag", run).exit_code == Exit.USAGE
    assert cli("run", "delete", run, input="n\n").exit_code == 1
    assert world.http.get(f"/v1/runs/{run}").status_code == 200

    deleted = cli("run", "delete", run, "--yes")
    assert deleted.stdout == f"{run} deleted\n"
    assert world.http.get(f"/v1/runs/{run}").status_code == 404
    assert world.http.get(f"/v1/runs/{older}").status_code == 200, "the other run of that name stays"


def test_what_needs_a_run_is_named_when_it_is_to_be_deleted(cli: Invoke, world: World, tmp_path: Path) -> None:
    trainer = world.claim(world.create(name="champ")["id"]).start()
    trainer.save(100, {"CartPole.onnx": b"x"}, tmp_path)
    trainer.finish()
    cli("checkpoint", "alias", "set", "tidy-champion", "champ/latest")

    refused = cli("run", "delete", "champ", "--yes")

    assert refused.exit_code == Exit.REFUSED
    assert "the alias tidy-champion stands for its checkpoint" in refused.stderr


def test_a_run_that_has_ended_is_mirrored_as_a_whole(cli: Invoke, world: World, tmp_path: Path) -> None:
    run = trained(world, "mirrored", [1.0, 2.0, 3.0]).run_id
    target = tmp_path / "results" / "mirrored"

    mirrored = cli("run", "mirror", run, str(target))
    again = cli("run", "mirror", run, str(target))

    assert (mirrored.exit_code, again.exit_code) == (Exit.OK, Exit.OK)
    assert points(target) == {REWARD: [(100, 1.0), (200, 2.0), (300, 3.0)]}
    assert (target / "configuration.yaml").exists()


def test_what_a_mirror_prints_has_lines_and_times_that_do_not_depend_on_when_it_was_started(
    cli: Invoke, world: World, tmp_path: Path
) -> None:
    trainer = world.claim(world.create(name="printed")["id"]).start()
    lines = ["Hyperparameters for behavior name CartPole: \n\ttrainer_type:\tppo"]
    trainer.ledger.event("lessons_began", " ".join(lines), data={"log_lines": lines})
    summarise(trainer, 100)

    first = cli("run", "mirror", "printed", str(tmp_path / "printed"), "--once")
    time.sleep(0.5)  # allow: sleep, because the subject is the time between two summaries
    cli("run", "tag", "printed", "seen")  # the run is "updated" now
    summarise(trainer, 200)
    second = cli("run", "mirror", "printed", str(tmp_path / "printed"), "--once")

    assert "name CartPole: \n\ttrainer_type:\tppo\n" in first.stdout
    assert elapsed(second.stdout) - elapsed(first.stdout) > 0.4


def elapsed(printed: str) -> float:
    return float(re.findall(r"Time Elapsed: ([\d.]+) s", printed)[-1])


def summarise(trainer: Trainer, step: int) -> None:
    trainer.ledger.metrics.append(
        [MetricPoint("CartPole", "Performance/Agent Steps per Second", step, time.time(), 1.0)]
    )


@pytest.mark.long
def test_a_mirror_follows_a_live_run_and_goes_on_after_an_interruption(world: World, tmp_path: Path) -> None:
    trainer = world.claim(world.create(name="live")["id"]).start()
    trainer.measure(REWARD, [1.0])
    command = [sys.executable, "-m", "ludus.cli", "run", "mirror", trainer.run_id, str(tmp_path / "live")]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, env={**os.environ, "LUDUS_SERVER": world.server}, stderr=subprocess.DEVNULL)

    def until(count: int, process: subprocess.Popen[bytes]) -> None:
        def shown() -> bool:
            assert process.poll() is None
            return len(points(tmp_path / "live").get(REWARD, ())) >= count

        eventually(shown, f"{count} points")

    first = start()
    until(1, first)
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == INTERRUPTED
    trainer.measure(REWARD, [2.0], first=200)
    second = start()
    until(2, second)
    trainer.measure(REWARD, [3.0], first=300)
    trainer.finish(RunState.CANCELLED)

    assert second.wait(60) == Exit.RUN_CANCELLED
    assert points(tmp_path / "live") == {REWARD: [(100, 1.0), (200, 2.0), (300, 3.0)]}


def test_a_folder_of_another_run_is_not_written_into(cli: Invoke, world: World, tmp_path: Path) -> None:
    first, second = (trained(world, name, [1.0]).run_id for name in ("mine", "yours"))
    cli("run", "mirror", first, str(tmp_path / "results"))
    before = (tmp_path / "results/run_logs/ludus.json").read_text()

    refused = cli("run", "mirror", second, str(tmp_path / "results"))

    assert refused.exit_code == Exit.USAGE
    assert first in refused.stderr
    assert (tmp_path / "results/run_logs/ludus.json").read_text() == before


def points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Read TensorBoard's event files of the behavior, as TensorBoard does."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415

    if not list((folder / "CartPole").glob("events.out.tfevents.*")):
        return {}
    reader = EventAccumulator(str(folder / "CartPole"))
    reader.Reload()
    return {tag: [(each.step, each.value) for each in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}
