"""Every task of the table reaches its bar, and is not worse than Stable-Baselines3 where that was measured.

make learn                        all of it: hours; goes on where it was interrupted
make learn ARGS='-k pendulum'     some of it
"""

import json
from pathlib import Path
from statistics import median

import pytest

from tests.learning.scores import machine_kind, score_of
from tests.learning.statistics import probability_of_worse
from tests.learning.tasks import TASKS, Task

PEERS = Path(__file__).parent / "peers.json"
"""Task -> scores of Stable-Baselines3's models, written by `benchmarks/peer_scores.py`."""

pytestmark = [pytest.mark.learning, pytest.mark.slow]


def cases(tasks: tuple[Task, ...]) -> list[object]:
    """Return the tasks as parameters: CI runs those that are not marked `hours`.

    Tests of one task share its scores, so one process runs them.
    """
    marks = {True: [pytest.mark.timeout(600)], False: [pytest.mark.hours, pytest.mark.timeout(0)]}
    return [
        pytest.param(task, id=task.name, marks=[*marks[task.quick], pytest.mark.xdist_group(task.name)])
        for task in tasks
    ]


@pytest.mark.parametrize("task", cases(tuple(task for task in TASKS if task.at_most is None)))
def test_the_median_of_the_seeds_reaches_the_bar(task: Task) -> None:
    scores = [score_of(task, seed) for seed in task.seeds]

    assert all(score.steps == task.steps for score in scores)
    assert median(score.score for score in scores) >= task.bar, [score.score for score in scores]


@pytest.mark.parametrize("task", cases(tuple(task for task in TASKS if task.at_most is not None)))
def test_the_control_does_not_learn(task: Task) -> None:
    scores = [score_of(task, seed).score for seed in task.seeds]

    assert task.at_most is not None
    assert max(scores) <= task.at_most, scores


@pytest.mark.parametrize("task", cases(tuple(task for task in TASKS if task.peer)))
def test_scores_are_not_worse_than_those_of_stable_baselines3(task: Task) -> None:
    peer = json.loads(PEERS.read_text()).get(task.name, {"scores": [], "machine": "none"})
    theirs = peer["scores"]
    assert len(theirs) >= 5, "benchmarks/peer_scores.py goes on where it stopped"
    assert peer["machine"] == machine_kind(), "benchmarks/peer_scores.py measures Stable-Baselines3 on this kind"

    ours = [score_of(task, seed).score for seed in task.seeds]

    assert probability_of_worse(ours, theirs, task.margin) < 0.95, (ours, theirs)


@pytest.mark.parametrize("task", cases(tuple(task for task in TASKS if task.baseline)))
def test_scores_are_not_worse_than_those_of_the_baseline(task: Task) -> None:
    (baseline,) = (other for other in TASKS if other.name == task.baseline)

    ours, theirs = ([score_of(each, seed).score for seed in each.seeds] for each in (task, baseline))

    assert probability_of_worse(ours, theirs, task.margin) < 0.95, (ours, theirs)
