"""`ludus compare` against a real server, with runs whose rewards are stored: sentence, JSON, reports, exit codes."""

import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ludus.cli.exits import Exit
from ludus.client import Client
from ludus.schemas.states import RunState, StopReason
from ludus.statistics import compare_groups
from tests.ludus.cli.conftest import Invoke, as_json
from tests.ludus.cli.test_reports import outcomes
from tests.server.app.world import Trainer, World

REWARD = "Environment/Cumulative Reward"
BEFORE = [410.0, 395.0, 432.0, 388.0, 421.0]
AFTER = [480.0, 455.0, 421.5, 499.0, 471.0]


def trained(
    world: World, name: str, rewards: Sequence[float], *tags: str, seed: int | None = None, max_steps: int = 1000
) -> Trainer:
    """Make a run that has recorded a reward at steps 100, 200, ..., and still runs."""
    config = {
        "behaviors": {"CartPole": {"trainer_type": "ppo", "max_steps": max_steps}},
        **({} if seed is None else {"env_settings": {"seed": seed}}),
    }
    trainer = world.claim(world.create(config, name=name, tags=list(tags))["id"]).start()
    trainer.measure(REWARD, rewards)
    return trainer


@pytest.fixture(scope="module", autouse=True)
def _groups(world: World) -> None:
    """Groups `before` and `after` of five seeds by tag; `walker-1` to `walker-3` by name, and some that are unfit."""
    for tag, scores in (("before", BEFORE), ("after", AFTER)):
        for number, score in enumerate(scores):
            trained(world, f"{tag}-{number}", [0.0, 100.0, score - 4.0, *[score + 1.0] * 4], tag).finish()
    for seed, steps in ((1, 1000), (2, 2000)):
        trained(world, f"steps-{steps}", [float(seed)], "mixed", seed=seed, max_steps=steps).finish()
    for number, score in enumerate([1.0, 2.0, 3.0], 1):
        trained(world, f"walker-{number}", [score], "walker", seed=7).finish()
    trained(world, "failed", [9.0], "walker", "only-failed").finish(RunState.FAILED, reason=StopReason.DIVERGED)
    trained(world, "going", [9.0], "walker", "going")
    trained(world, "invalid", [9.0, math.nan, 9.0]).finish()
    trained(world, "silent", []).finish()
    several = trained(world, "several", [1.0])
    several.measure(REWARD, [5.0], behavior="Other")
    several.finish()


def test_it_says_that_b_is_better_by_how_much_and_how_sure(cli: Invoke) -> None:
    found = cli("compare", "tag:before", "tag:after")

    assert found.exit_code == 0
    assert found.stdout == (
        "B is better: 468.7 against 408.7 (interquartile mean), by 60 [22.67, 88.67], probability of improvement "
        "0.96 [0.76, 1]; 5 seeds each (Environment/Cumulative Reward; 95 % intervals)\n"
    )
    assert cli("compare", "tag:after", "tag:before").stdout.startswith(
        "B is worse: 408.7 against 468.7 (interquartile mean), by 60 ["
    )


def test_the_score_is_the_mean_of_the_last_summaries_and_the_numbers_are_those_of_the_statistics(cli: Invoke) -> None:
    found = as_json(cli("compare", "tag:before", "tag:after", "--last", "4", "--json"))

    before, after = ([score + 1.0 for score in scores] for scores in (BEFORE, AFTER))
    expected = compare_groups(before, after)
    assert [run["score"] for run in found["a"]["runs"]] == pytest.approx(before)
    assert [run["name"] for run in found["b"]["runs"]] == [f"after-{number}" for number in range(5)]
    assert (found["verdict"], found["more_seeds"]) == ("better", {"a": 0, "b": 0})
    for name, estimate in (("gain", expected.gain), ("probability_of_improvement", expected.probability)):
        assert found[name] == pytest.approx({"value": estimate.value, "low": estimate.low, "high": estimate.high})
    assert found["p_value"] == pytest.approx(expected.p_value)
    assert found["a"]["interquartile_mean"]["value"] == pytest.approx(expected.a.value)
    assert (found["profile"][0]["above"], found["profile"][-1]["above"]) == (389.0, 500.0)
    assert (found["profile"][0]["a"]["value"], found["profile"][-1]["b"]["value"]) == (0.8, 0.0)
    assert (found["metric"], found["last"], found["margin"]) == (REWARD, 4, 0.0)


def test_where_a_lower_score_is_better_b_is_worse(cli: Invoke) -> None:
    found = cli("compare", "tag:before", "tag:after", "--lower", "--confidence", "0.9")

    assert found.stdout.startswith("B is worse: 468.7 against 408.7 (interquartile mean), by 60 [")
    assert found.stdout.endswith("(Environment/Cumulative Reward, lower is better; 90 % intervals)\n")


def test_too_few_seeds_are_said_with_how_many_more_would_settle_it(cli: Invoke) -> None:
    few = cli("compare", "before-0,before-1", "after-0,after-1,after-2")
    one = cli("compare", "before-0", "after-0")
    one_of_b = cli("compare", "tag:before", "after-0")

    assert few.stdout.startswith(
        "Not enough seeds to tell: 452.2 against 402.5 (interquartile mean), a gain of 49.67 ["
    )
    assert "; 2 seeds of A, 3 of B; about " in few.stdout
    assert "more of A and " in few.stdout
    assert "would settle it if the difference stays (" in few.stdout
    assert one.stdout.startswith(
        "One seed each says nothing about other seeds: 480 against 410 (interquartile mean); with fewer than 4 of each "
        "nothing can be told ("
    )
    assert one_of_b.stdout.startswith("One seed of B says nothing about other seeds")


def test_a_margin_makes_groups_the_same_or_at_least_not_worse(cli: Invoke) -> None:
    same = cli("compare", "tag:before", "tag:after", "--margin", "100")
    not_worse = cli("compare", "tag:before", "tag:after", "--margin", "70")

    assert same.stdout.startswith("A and B are the same within 100: 468.7 against 408.7")
    assert not_worse.stdout.startswith("B is not worse by more than 70; not enough seeds to tell more: ")


@pytest.mark.parametrize(
    ("a", "b", "options", "code"),
    [
        ("tag:before", "tag:after", "--require better", Exit.OK),
        ("tag:before", "tag:after", "--require not-worse --margin 1", Exit.OK),
        ("tag:before", "tag:after", "--require not-worse --margin 70", Exit.OK),
        ("tag:after", "tag:before", "--require better", Exit.FAILED_GATE),
        ("tag:after", "tag:before", "--require not-worse --margin 1", Exit.FAILED_GATE),
        ("tag:before", "tag:after", "--require better --margin 100", Exit.FAILED_GATE),
        ("tag:before", "tag:after", "--require better --margin 70", Exit.UNDECIDED),
        ("before-0", "after-0", "--require better", Exit.UNDECIDED),
        ("before-0", "after-0", "", Exit.OK),
        ("tag:after", "tag:before", "", Exit.OK),
    ],
)
def test_a_requirement_makes_the_verdict_an_exit_code(cli: Invoke, a: str, b: str, options: str, code: Exit) -> None:
    assert cli("compare", a, b, *options.split()).exit_code == code


@pytest.mark.parametrize(
    ("arguments", "code", "outcome"),
    [
        ("tag:before tag:after --require better", Exit.OK, ("passed", "")),
        ("tag:after tag:before --require better", Exit.FAILED_GATE, ("failure", "B is worse: ")),
        ("before-0 after-0 --require better", Exit.UNDECIDED, ("failure", "One seed each says nothing")),
        ("tag:before tag:nowhere", Exit.USAGE, ("error", "no run has the tag 'nowhere'")),
    ],
)
def test_the_junit_report_has_the_verdict_in_every_outcome(
    cli: Invoke, tmp_path: Path, arguments: str, code: Exit, outcome: tuple[str, str]
) -> None:
    junit, summary = tmp_path / "compare.xml", tmp_path / "summary.md"

    found = cli("compare", *arguments.split(), "--junit", str(junit), "--summary", str(summary))

    groups = " ".join(arguments.split()[:2])
    kind, message = outcomes(junit)[groups]
    assert (found.exit_code, kind, message[: len(outcome[1])]) == (code, *outcome)
    assert found.stdout.strip() in junit.read_text()
    assert f"ludus compare {groups}" in summary.read_text().replace("\\", "")


def test_what_makes_a_comparison_doubtful_is_said_beside_it(cli: Invoke) -> None:
    found = cli("compare", "tag:before", "tag:walker")
    named = cli("compare", "tag:before", "walker-1,failed")
    mixed = cli("compare", "tag:before", "tag:mixed")
    as_notes = as_json(cli("compare", "tag:before", "tag:walker", "--json"))

    assert "B leaves out 1 FAILED, 1 RUNNING: of the runs with a tag only those count that succeeded" in found.stderr
    assert "runs of B have one seed (7): they may be alike, and the intervals too narrow" in found.stderr
    assert "; 5 seeds of A, 3 of B" in found.stdout
    assert "failed of B is FAILED, and counts with what it has" in named.stderr
    assert "runs of B differ in more than their seeds: behaviors.CartPole.max_steps" in mixed.stderr
    assert "seeds" not in cli("compare", "tag:before", "tag:after").stderr
    assert as_notes["b"]["left_out"] == {"FAILED": 1, "RUNNING": 1}
    assert len(as_notes["notes"]) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ("tag:before tag:nowhere", Exit.USAGE, "no run has the tag 'nowhere'"),
        ("tag:before tag:only-failed", Exit.USAGE, "no run with the tag 'only-failed' has succeeded: 1 FAILED"),
        ("tag:before tag:", Exit.USAGE, "'' is not a tag: 1 to 100 characters"),
        ("tag:before tag:aft*", Exit.USAGE, "'aft*' is not a tag"),
        (
            "tag:before sweep:after",
            Exit.USAGE,
            "'sweep:after' names no group of runs; write RUN,RUN,..., tag:TAG or experiment:NAME",
        ),
        ("tag:before after-0,", Exit.USAGE, "'after-0,' has a run without a name"),
        ("tag:before going", Exit.USAGE, "going is RUNNING: its score is not known before its end"),
        ("tag:before absent", Exit.REFUSED, "absent"),
        ("tag:before before-0,after-0", Exit.USAGE, "is in A and in B: a run is not better than itself"),
        ("tag:before after-0,after-0", Exit.USAGE, "twice: the same seed again says nothing new"),
        ("tag:before invalid", Exit.NO_METRIC, "has no score: 1 of its last 3 values of Environment/Cumulative Reward"),
        ("tag:before silent", Exit.NO_METRIC, "has no score: no such metric; the run has none"),
        ("tag:before tag:after --metric rewrd", Exit.NO_METRIC, "did you mean 'reward'?"),
        ("tag:before tag:after --metric Other:reward", Exit.NO_METRIC, "no metrics of a behavior 'Other'"),
        (
            "tag:before several",
            Exit.NO_METRIC,
            "several behaviors have Environment/Cumulative Reward (CartPole,",
        ),
        ("tag:before tag:after --last 0", Exit.USAGE, "0 is not in the range"),
        ("tag:before tag:after --confidence 1", Exit.USAGE, "1 is not from 0.5 on and below 1"),
        ("tag:before tag:after --confidence 95", Exit.USAGE, "95 is not from 0.5 on and below 1"),
        ("tag:before tag:after --margin nan", Exit.USAGE, "'nan' is not a finite number"),
        ("tag:before tag:after --margin -1", Exit.USAGE, "-1 is not from 0 on"),
        ("tag:before tag:after --require not-worse", Exit.USAGE, "--require not-worse needs a --margin"),
        ("tag:before tag:after --require same", Exit.USAGE, "'same' is not one of"),
        ("tag:before", Exit.USAGE, "Missing argument 'B'"),
    ],
)
def test_what_cannot_be_compared_is_a_sentence(cli: Invoke, arguments: str, code: Exit, says: str) -> None:
    found = cli("compare", *arguments.split())

    assert (found.exit_code, found.stdout) == (code, "")
    assert says in re.sub(r"\s+", " ", found.stderr)


def test_a_behavior_of_several_is_named_before_the_key(cli: Invoke) -> None:
    found: Any = as_json(cli("compare", "walker-1", "several", "--metric", "CartPole:reward", "--json"))

    assert (found["b"]["runs"][0]["score"], found["behavior"]) == (1.0, "CartPole")


def test_the_last_points_of_a_long_history_are_those_that_were_recorded(world: World, client: Client) -> None:
    values = [float(number) for number in range(20_011)]
    trainer = trained(world, "long", values)
    trainer.finish()

    (tail,) = client.metrics.tail("long", "reward", points=3)
    (short,) = client.metrics.tail("walker-1", REWARD, "CartPole", points=3)
    (invalid,) = client.metrics.tail("invalid", "reward", points=2)

    assert tail.values == (20_008.0, 20_009.0, 20_010.0)
    assert (tail.steps, tail.counts, tail.total) == ((2_000_900, 2_001_000, 2_001_100), (1, 1, 1), 3)
    assert (short.values, invalid.values) == ((1.0,), (None, 9.0))
    assert client.metrics.tail("silent", "reward") == []
    assert [series.behavior for series in client.metrics.tail("several", "reward")] == ["CartPole", "Other"]


PAGE = (Path(__file__).parents[3] / "docs" / "compare.md").read_text()


def test_the_page_shows_what_the_command_prints(cli: Invoke) -> None:
    (command, printed), *_ = re.findall(r"```sh\n(ludus compare [^\n]+)\n```\n```text\n(.*?)\n```", PAGE, re.DOTALL)

    found = cli(*shlex.split(command)[1:])

    assert found.stdout.split() == printed.split()


def test_the_page_names_what_the_json_has(cli: Invoke) -> None:
    found = as_json(cli("compare", "tag:before", "tag:after", "--json"))

    rows = re.findall(r"^\| (`.+?) \|", PAGE.partition("## JSON")[2], re.MULTILINE)
    assert set(found) == set(re.findall(r"\w+", " ".join(rows)))


def test_the_python_of_the_page_returns_what_it_shows() -> None:
    ((block, shown),) = re.findall(r"```python\n(.*?)\n```\n```text\n(.*?)\n```", PAGE, re.DOTALL)
    statements, _, last = block.rpartition("\n")
    names: dict[str, object] = {}
    exec(statements, names)

    assert repr(eval(last, names)) == shown
