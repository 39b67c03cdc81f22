"""Experiments are brought to their end by the controller's rounds, whatever is killed, paused or broken on the way."""

from collections import Counter
from typing import Any

import optuna
import pytest
from sqlalchemy import event, select

from server.checkpoints.models import Checkpoint
from server.lifecycle.experiments import rounds
from server.lifecycle.experiments.models import Experiment, Trial, TrialRun
from server.lifecycle.preparation import prepare
from server.lifecycle.service import RunService
from server.runs.models import Run
from server.runs.repository import NewRun
from server.runs.stored_configs.service import Prepared
from tests.factories import give_up, save_checkpoints
from tests.server.app.world import World
from tests.server.lifecycle.experiments.fleet import CONFIG, EPOCHS, LR, STEPS
from tests.server.lifecycle.experiments.played import TURNS, Played, begin, body
from tests.statements import selected


def change(world: World, name: str, **changes: Any) -> dict[str, Any]:
    headers = {"Content-Type": "application/merge-patch+json"}
    changed = world.http.patch(f"/v1/experiments/{name}", json=changes, headers=headers)
    assert changed.status_code == 200, changed.text
    return dict(changed.json())


def runs_of(trials: list[dict[str, Any]]) -> list[str]:
    return [run["run_id"] for trial in trials for run in trial["runs"]]


@pytest.mark.long
def test_a_sweep_ends_with_its_budget_and_names_the_best_setting(world: World) -> None:
    played = begin(world, body("sweep", parallelism=3))

    experiment = played.play()

    trials = played.trials()
    assert experiment["detail"] == "Its budget of 12 runs is used."
    assert experiment["trials"] == {"COMPLETE": 12}
    assert experiment["used"]["runs"] == 12
    assert experiment["used"]["steps"] == 12 * STEPS
    assert played.most == 3
    assert [trial["number"] for trial in trials] == list(range(12))
    assert experiment["best"]["value"] == max(trial["value"] for trial in trials)
    assert trials[0]["parameters"][LR] == 3e-4, "the baseline is the configuration's own"


@pytest.mark.long
def test_each_trial_is_an_ordinary_run_with_tags_a_seed_and_its_own_values(world: World) -> None:
    played = begin(world, body("ordinary", seeds=2, budget={"runs": 4}, parallelism=4))

    played.play()

    trial = played.trials()[1]
    runs = [world.http.get(f"/v1/runs/{run['run_id']}").json() for run in trial["runs"]]
    assert [run["name"] for run in runs] == ["ordinary-1-0", "ordinary-1-1"]
    assert [run["seed"] for run in runs] == [3, 4]
    assert [run["tags"] for run in runs] == [["experiment:ordinary", "trial:1"]] * 2
    config = world.http.get("/v1/experiments/ordinary/trials/1/config").json()["config"]
    for run in runs:
        assert run["config"]["behaviors"]["CartPole"]["hyperparameters"]["learning_rate"] == trial["parameters"][LR]
    assert config["behaviors"]["CartPole"]["hyperparameters"] == {"learning_rate": trial["parameters"][LR]}


@pytest.mark.long
def test_a_grid_tries_every_setting_once_and_needs_no_budget(world: World) -> None:
    parameters = {LR: {"values": [1e-4, 1e-3, 1e-2]}, EPOCHS: {"min": 2, "max": 8, "step": 3}}
    played = begin(world, body("grid", parameters=parameters, sampler="grid", budget={}, parallelism=4))

    experiment = played.play()

    settings = Counter((trial["parameters"][LR], trial["parameters"][EPOCHS]) for trial in played.trials())
    assert settings == Counter({(rate, epochs): 1 for rate in (1e-4, 1e-3, 1e-2) for epochs in (2, 5, 8)})
    assert experiment["detail"] == "All 9 settings were tried."
    assert experiment["best"]["parameters"][LR] == 1e-3


@pytest.mark.parametrize(
    "rule", ["asha", *(pytest.param(rule, marks=pytest.mark.long) for rule in ("hyperband", "median"))]
)
def test_early_stopping_ends_the_worse_trials_before_their_steps_are_used(world: World, rule: str) -> None:
    stopping = {"type": rule, "min_steps": 1000, **({"max_steps": STEPS} if rule == "hyperband" else {})}
    played = begin(
        world, body(f"stops-{rule}", budget={"runs": 30}, sampler="random", parallelism=4, early_stopping=stopping)
    )

    experiment = played.play()

    trials = played.trials()
    pruned = [trial for trial in trials if trial["state"] == "PRUNED"]
    complete = [trial for trial in trials if trial["state"] == "COMPLETE"]
    assert len(trials) == 30
    assert len(pruned) >= 10
    assert experiment["used"]["steps"] < 0.8 * 30 * STEPS
    assert max(trial["value"] for trial in complete) > max(trial["reports"][-1][1] for trial in pruned)
    assert all("others were better" in trial["detail"] for trial in pruned)
    for run_id in runs_of(pruned):
        assert world.http.get(f"/v1/runs/{run_id}").json()["state"] == "SUCCEEDED", "it kept a checkpoint"


@pytest.mark.long
@pytest.mark.timeout(400)  # two hundred runs of nine summaries each
def test_200_trials_survive_a_controller_that_is_replaced_in_every_turn_and_none_is_lost_or_doubled(
    world: World,
) -> None:
    stopping = {"type": "asha", "min_steps": 1000}
    played = begin(world, body("two-hundred", budget={"runs": 200}, parallelism=16, early_stopping=stopping))

    for _ in range(TURNS):
        played.restart()
        played.turn()
        if played.get()["state"] == "FINISHED":
            break

    experiment, trials = played.get(), played.trials()
    assert experiment["state"] == "FINISHED"
    assert [trial["number"] for trial in trials] == list(range(200))
    assert sum(experiment["trials"].get(state, 0) for state in ("COMPLETE", "PRUNED")) == 200
    assert len(set(runs_of(trials))) == len(runs_of(trials)) == 200
    best = experiment["best"]["parameters"][LR]
    assert 3e-4 < best < 3e-3, "TPE finds the neighbourhood of the optimum, 1e-3"
    late = [trial for trial in trials[100:] if 1e-4 < trial["parameters"][LR] < 1e-2]
    assert len(late) > 60, "and tries it more often than the rest"


@pytest.mark.long
def test_a_controller_that_is_killed_before_its_commit_has_begun_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = begin(world, body("killed", parallelism=2))
    create = RunService.create
    calls = 0

    def create_and_die(service: RunService, new: NewRun) -> Run:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt  # nothing of its transaction stays, as after SIGKILL
        return create(service, new)

    monkeypatch.setattr(RunService, "create", create_and_die)
    with pytest.raises(KeyboardInterrupt):
        played.turn()
    assert played.trials() == []
    monkeypatch.undo()
    played.restart()

    assert played.play()["trials"] == {"COMPLETE": 12}


@pytest.mark.long
def test_of_two_controllers_at_once_one_begins_the_trials(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    played = begin(world, body("raced", parallelism=2))
    first = played.controller
    played.restart()

    def prepare_late(*given: Any, **named: Any) -> Prepared:
        monkeypatch.undo()
        first.tick()  # the other one reads, decides and commits meanwhile
        return prepare(*given, **named)

    monkeypatch.setattr(rounds, "prepare", prepare_late)
    handled = played.controller.tick()["experiments"]

    assert handled == 0, "the late one has dropped what it decided"
    assert [trial["number"] for trial in played.trials()] == [0, 1]
    assert played.play()["trials"] == {"COMPLETE": 12}


@pytest.mark.long
def test_pause_and_resume_take_the_runs_along(world: World) -> None:
    played = begin(world, body("paused", parallelism=2, budget={"runs": 4}))
    played.turn()
    assert world.http.post("/v1/experiments/paused:pause").json()["state"] == "PAUSED"
    for _ in range(3):
        played.turn()
    states = [run["state"] for trial in played.trials() for run in trial["runs"]]
    assert states == ["PAUSED", "PAUSED"]
    hours = played.get()["used"]["hours"]
    played.turn()
    assert played.get()["used"]["hours"] == hours, "its time stands still"

    world.http.post("/v1/experiments/paused:resume")

    assert played.play()["trials"] == {"COMPLETE": 4}


@pytest.mark.long
def test_more_budget_lets_a_finished_experiment_go_on_and_stop_ends_it(world: World) -> None:
    played = begin(world, body("extended", budget={"runs": 2}))
    played.play()
    assert change(world, "extended", budget={"runs": 5}, parallelism=2)["state"] == "RUNNING"
    assert played.play()["trials"] == {"COMPLETE": 5}
    change(world, "extended", budget={"runs": 50})
    played.turn()

    stopped = world.http.post("/v1/experiments/extended:stop").json()

    detail = (
        "Stopped by a user. 2 trials were stopped before their end; `ludus experiment retry extended` tries them again."
    )
    assert (stopped["state"], stopped["detail"]) == ("FINISHED", detail)
    assert stopped["trials"] == {"COMPLETE": 5, "STOPPED": 2}
    played.turn()
    assert world.http.delete("/v1/experiments/extended").status_code == 204
    assert world.http.get("/v1/runs/extended-0-0").status_code == 200, "the runs stay"


@pytest.mark.parametrize("budget", [{"steps": 3 * STEPS}, {"hours": 1e-6}])
def test_at_the_limit_of_a_budget_the_runs_are_stopped(world: World, budget: dict[str, float]) -> None:
    (name,) = budget
    played = begin(world, body(f"limit-{name}", budget=budget, parallelism=2))

    experiment = played.play()

    assert experiment["detail"].startswith("Its budget of ")
    assert set(experiment["trials"]) <= {"COMPLETE", "STOPPED"}
    played.turn()
    states = {run["state"] for trial in played.trials() for run in trial["runs"]}
    assert states <= {"SUCCEEDED"}


@pytest.mark.long
def test_a_trial_whose_run_fails_fails_alone_and_five_in_a_row_end_the_experiment(world: World) -> None:
    def diverges(config: Any) -> bool:
        return bool(config["behaviors"]["CartPole"]["hyperparameters"]["learning_rate"] > 1e-3)

    played = begin(world, body("fails", sampler="random"), fails=diverges)
    for _ in range(TURNS):
        played.turn()
        if played.get()["state"] != "RUNNING":
            break
    failed = [trial for trial in played.trials() if trial["state"] == "FAILED"]
    assert all("A loss is not finite." in trial["detail"] for trial in failed)

    worse = begin(world, body("all-fail"), fails=lambda _config: True)
    experiment = worse.play("FAILED")

    assert experiment["detail"].startswith("The last 5 trials have failed. Trial 4: Run run_")
    assert len(worse.trials()) == 5
    worse.fleet.fails = lambda _config: False
    world.http.post("/v1/experiments/all-fail:resume")
    assert worse.play()["trials"] == {"COMPLETE": 7, "FAILED": 5}


def test_what_holds_up_a_running_experiment_is_said_until_it_goes_on(world: World) -> None:
    database = world.services.database
    (checkpoint,) = save_checkpoints(database, 1000)
    config = {"behaviors": {"CartPole": {**CONFIG["behaviors"]["CartPole"], "initialize_from": checkpoint}}}
    played = begin(world, body("held-up", config=config, baseline=True, budget={"runs": 2}))
    give_up(database, checkpoint)

    played.turn()
    held = played.get()
    with database.write() as session:
        session.get_one(Checkpoint, checkpoint).deleted_at = None
    played.turn()

    assert held["state"] == "RUNNING"
    assert held["detail"].startswith("Held up, and tried again: ")
    assert checkpoint in held["detail"]
    assert played.get()["detail"] == ""
    assert played.play()["trials"] == {"COMPLETE": 2}


def test_the_runs_of_a_failed_experiment_pause_and_go_on_with_it(world: World) -> None:
    played = begin(world, body("fails-early", objective={"metric": "unknown"}, parallelism=3, budget={"runs": 3}))
    played.turn()
    late_run = played.trials()[0]["runs"][0]["run_id"]
    world.http.post(f"/v1/runs/{late_run}:pause").raise_for_status()
    for _ in range(4):
        played.fleet.turn()
    world.http.post(f"/v1/runs/{late_run}:resume").raise_for_status()  # the others are ahead, and end first

    played.play("FAILED")
    played.fleet.turn()

    assert world.http.get(f"/v1/runs/{late_run}").json()["state"] == "PAUSED"
    change(world, "fails-early", objective={"metric": "reward"})
    world.http.post("/v1/experiments/fails-early:resume").raise_for_status()
    assert played.play()["trials"] == {"COMPLETE": 3}


@pytest.mark.long
def test_an_unknown_metric_is_said_once_and_no_run_is_lost(world: World) -> None:
    played = begin(world, body("unknown", objective={"metric": "Environment/Rewards"}, budget={"runs": 2}))

    experiment = played.play("FAILED")

    assert "has recorded no Environment/Rewards, but Environment/Cumulative Reward." in experiment["detail"]
    change(world, "unknown", objective={"metric": "reward"})
    world.http.post("/v1/experiments/unknown:resume")
    assert played.play()["trials"] == {"COMPLETE": 2}
    assert played.get()["used"]["runs"] == 2


@pytest.mark.long
def test_a_sampler_that_raises_fails_the_experiment_with_its_error_and_can_be_resumed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = begin(world, body("raises", budget={"runs": 3}))

    def raises(*_given: Any, **_named: Any) -> Any:
        raise FloatingPointError("a kernel density of nothing")

    monkeypatch.setattr(optuna.samplers.TPESampler, "sample_independent", raises)
    experiment = played.play("FAILED")
    monkeypatch.undo()

    expected = "The sampler tpe failed: FloatingPointError: a kernel density of nothing."
    assert experiment["detail"] == expected
    world.http.post("/v1/experiments/raises:resume")
    assert played.play()["trials"] == {"COMPLETE": 3}


@pytest.mark.long
@pytest.mark.parametrize("verb", ["stop", "cancel"])
def test_a_run_that_a_user_ends_stops_its_trial_and_no_other_and_it_is_tried_again_when_asked(
    world: World, verb: str
) -> None:
    played = begin(world, body("by-hand", parallelism=2))
    played.turn()
    first = played.trials()[0]["runs"][0]["run_id"]
    world.http.post(f"/v1/runs/{first}:{verb}").raise_for_status()

    experiment = played.play()

    assert experiment["trials"] == {"COMPLETE": 11, "STOPPED": 1}
    stopped = "1 trial was stopped before its end; `ludus experiment retry by-hand` tries it again."
    assert experiment["detail"] == f"Its budget of 12 runs is used. {stopped}"
    why = "was stopped by a user." if verb == "stop" else "is CANCELLED: user"
    assert played.trials()[0]["detail"] == f"Run {first} {why}"

    assert world.http.post("/v1/experiments/by-hand:retry").json()["state"] == "RUNNING"
    experiment = played.play()

    assert experiment["trials"] == {"COMPLETE": 12}
    assert experiment["detail"] == "Its budget of 12 runs is used."
    (again,) = played.trials()[0]["runs"]
    assert (again["run_id"] != first, again["seed"]) == (True, 0)
    assert world.http.get(f"/v1/runs/{again['run_id']}").json()["seed"] == 3, "that of the first try"
    assert experiment["used"]["runs"] == 13, "what was spent stays spent"
    assert 12 * STEPS < experiment["used"]["steps"] < 13 * STEPS


@pytest.mark.long
def test_an_evaluation_that_is_stopped_stops_its_trial_and_a_retry_evaluates_again_without_training(
    world: World,
) -> None:
    played = begin(world, body("unjudged", objective={"evaluate": {"episodes": 3}}, budget={"runs": 2}), saves=True)
    while not any(run["assessment_id"] for trial in played.trials() for run in trial["runs"]):
        played.turn()
        while played.controller.tick()["experiments"]:
            pass
    (run,) = played.trials()[0]["runs"]
    world.http.post(f"/v1/runs/{run['assessment_id']}:stop").raise_for_status()
    played.controller.tick()

    assert played.trials()[0]["state"] == "STOPPED"
    world.http.post("/v1/experiments/unjudged:retry", json={"trials": [0]}).raise_for_status()
    played.controller.tick()
    (again,) = played.trials()[0]["runs"]
    assert again["run_id"] == run["run_id"]
    assert again["assessment_id"] not in {None, run["assessment_id"]}


@pytest.mark.long
def test_a_grid_that_was_stopped_has_every_setting_once_after_a_retry(world: World) -> None:
    parameters = {LR: {"values": [1e-4, 1e-3, 1e-2]}, EPOCHS: {"min": 2, "max": 8, "step": 3}}
    played = begin(world, body("regrid", parameters=parameters, sampler="grid", budget={}, parallelism=4))
    played.turn()
    played.turn()
    world.http.post("/v1/experiments/regrid:stop").raise_for_status()
    played.turn()
    world.http.post("/v1/experiments/regrid:resume").raise_for_status()
    stopped = "All 9 settings were tried. 4 trials were stopped before their end; `ludus experiment retry regrid` tries"
    assert played.play()["detail"] == f"{stopped} them again."

    world.http.post("/v1/experiments/regrid:retry").raise_for_status()
    experiment = played.play()

    settings = Counter((trial["parameters"][LR], trial["parameters"][EPOCHS]) for trial in played.trials())
    assert settings == Counter({(rate, epochs): 1 for rate in (1e-4, 1e-3, 1e-2) for epochs in (2, 5, 8)})
    assert experiment["trials"] == {"COMPLETE": 9}
    assert experiment["detail"] == "All 9 settings were tried."


@pytest.mark.long
def test_a_retry_trains_only_the_seeds_that_have_no_value(world: World) -> None:
    played = begin(world, body("seeds", seeds=3, budget={"runs": 3}, parallelism=2))
    while not any(run["seed"] == 2 for trial in played.trials() for run in trial["runs"]):
        played.turn()
    first = {run["seed"]: run for run in played.trials()[0]["runs"]}
    world.http.post("/v1/experiments/seeds:stop").raise_for_status()
    played.turn()
    world.http.post("/v1/experiments/seeds:retry").raise_for_status()

    experiment = played.play()

    (trial,) = played.trials()
    assert trial["state"] == "COMPLETE"
    kept = [run["seed"] for run in trial["runs"] if run["run_id"] == first[run["seed"]]["run_id"]]
    assert kept == [seed for seed, run in first.items() if run["value"] is not None] != []
    assert experiment["used"]["runs"] == 3 + (3 - len(kept))


@pytest.mark.long
def test_a_trial_that_failed_is_tried_again_when_it_is_named(world: World) -> None:
    played = begin(world, body("once-broken", budget={"runs": 2}), fails=lambda _config: True)
    assert played.play()["trials"] == {"FAILED": 2}
    played.fleet.fails = lambda _config: False
    nothing = world.http.post("/v1/experiments/once-broken:retry")
    assert (nothing.status_code, nothing.json()["code"]) == (409, "nothing_to_retry")

    world.http.post("/v1/experiments/once-broken:retry", json={"trials": [1]}).raise_for_status()

    assert played.play()["trials"] == {"COMPLETE": 1, "FAILED": 1}
    refused = world.http.post("/v1/experiments/once-broken:retry", json={"trials": [0, 1]})
    assert "Trial 1 of experiment exp_" in refused.json()["detail"]
    assert " is COMPLETE. Only trials that are STOPPED or FAILED are tried again" in refused.json()["detail"]
    assert played.get()["state"] == "FINISHED", "a refused retry changes nothing"
    assert world.http.post("/v1/experiments/once-broken:retry", json={"trials": [7]}).status_code == 404


def with_history(world: World, name: str, ended: int) -> Played:
    """Begin an experiment of which one run trains, after so many trials that are complete."""
    played = begin(world, body(name, budget={"runs": 1000, "steps": 10**12}))
    played.turn()
    with world.services.database.write() as session:
        (experiment,) = session.scalars(select(Experiment).where(Experiment.name == name))
        for number in range(1, ended + 1):
            trial = Trial(experiment_id=experiment.id, number=number, state="COMPLETE", value=1.0)
            trial.parameters, trial.reports, trial.created_at = {LR: 1e-3}, [], 1.0
            session.add(trial)
            session.flush()
            row = TrialRun(experiment_id=experiment.id, trial=number, seed=0, run_id=f"gone-{number}", is_open=False)
            row.steps, row.seconds, row.gpus, row.is_paused, row.value = 10, 1.0, 0, False, 1.0
            session.add(row)
    return played


def test_a_round_reads_as_many_rows_after_300_trials_as_after_3(world: World) -> None:
    loaded = Counter[str]()

    def count(row: object, _context: object) -> None:
        loaded[type(row).__name__] += 1

    costs = []
    for name, ended in (("short", 3), ("long", 300)):
        played = with_history(world, name, ended)
        loaded.clear()
        with selected(world.services.database) as statements:
            for model in (Experiment, Trial, TrialRun, Run):
                event.listen(model, "load", count)
            try:
                played.controller.tick()
            finally:
                for model in (Experiment, Trial, TrialRun, Run):
                    event.remove(model, "load", count)
        costs.append((dict(loaded), len(statements)))
        world.http.post(f"/v1/experiments/{name}:stop").raise_for_status()

    assert costs[0] == costs[1]
    assert costs[1][0] == {"Experiment": 1, "Trial": 1, "TrialRun": 1, "Run": 1}, "what is under way"


def test_runs_of_a_deleted_experiment_are_none_of_another_one_of_its_name(world: World) -> None:
    first = begin(world, body("reused", budget={"runs": 1}))
    first.play()
    former = world.http.get("/v1/experiments/reused").json()["id"]
    world.create(tags=["experiment:reused"], name="by-hand")
    world.http.delete("/v1/experiments/reused").raise_for_status()
    second = begin(world, body("reused", budget={"runs": 1}))
    second.turn()

    def tagged(tag: str) -> set[str]:
        runs = world.http.get("/v1/runs", params={"filter": f'tags = "{tag}"'}).json()["runs"]
        assert all(tag in run["tags"] for run in runs)
        return {run["id"] for run in runs}

    by_hand = world.http.get("/v1/runs/by-hand").json()["id"]
    assert tagged("experiment:reused") == {*runs_of(second.trials()), by_hand}
    assert len(tagged(f"experiment:{former}")) == 1, "they are still found together"


@pytest.mark.long
def test_a_run_that_is_still_about_to_pause_when_the_experiment_goes_on_is_resumed(world: World) -> None:
    played = begin(world, body("late-pause", budget={"runs": 2}))
    played.turn()
    world.http.post("/v1/experiments/late-pause:pause").raise_for_status()
    world.http.post("/v1/experiments/late-pause:resume").raise_for_status()  # before its worker has heard of it

    assert played.play()["trials"] == {"COMPLETE": 2}


@pytest.mark.long
def test_refused_settings_do_not_end_an_experiment_whose_other_trials_train(world: World) -> None:
    sizes = "behaviors.CartPole.hyperparameters"
    parameters = {f"{sizes}.batch_size": {"values": [64, 8192]}, f"{sizes}.buffer_size": {"values": [1024, 10240]}}
    played = begin(world, body("refused", parameters=parameters, sampler="random", budget={"runs": 8}, parallelism=8))

    experiment = played.play()

    assert experiment["trials"]["COMPLETE"] == 8
    failed = [trial for trial in played.trials() if trial["state"] == "FAILED"]
    assert failed
    assert all("is larger than buffer_size" in trial["detail"] for trial in failed)


@pytest.mark.long
def test_a_trial_that_trains_to_its_end_is_complete_and_never_pruned_there(world: World) -> None:
    stopping = {"type": "asha"}  # the last rung would be max_steps
    played = begin(world, body("to-the-end", early_stopping=stopping, parallelism=4))

    played.play()

    for trial in played.trials():
        assert all(step < STEPS for step, _ in trial["reports"])
        assert trial["state"] != "PRUNED" or trial["reports"][-1][0] < STEPS


@pytest.mark.long
def test_importance_names_the_key_that_counts_once_enough_trials_are_complete(world: World) -> None:
    space = {LR: {"min": 1e-5, "max": 1e-1, "scale": "log"}, EPOCHS: {"values": [2, 4, 8]}}
    played = begin(world, body("weighed", parameters=space, budget={"runs": 24}, sampler="random"))
    before = world.http.get("/v1/experiments/weighed/importance").json()
    played.play()

    found = world.http.get("/v1/experiments/weighed/importance").json()

    assert before == {"shares": {}, "trials": 0}
    assert found["trials"] == 24
    assert list(found["shares"]) == [LR, EPOCHS], "the highest first"
    assert sum(found["shares"].values()) == pytest.approx(1.0)
    assert found["shares"][LR] > 0.7
