"""Scores of trained models, one file for each task and seed, so that hours of training can be interrupted and go on.

A score counts for the sources that it was made with: `worker/`, the configuration models and the task. When any of them
changes, its file is out of date and the seed is trained again. The folder is `.learn/`, or `LUDUS_LEARN_FOLDER`.
"""

import hashlib
import json
import os
import platform
import shutil
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import fmean

import pytest

from benchmarks.alone import play, train
from tests.learning.tasks import Task

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = ("ludus", "server/config", "worker")
EPISODES = 20
LAST = 5
"""Summaries whose mean is the score of a game of several agents, as of `ludus compare`."""


@dataclass(frozen=True, slots=True)
class Score:
    """What one seed of a task reached."""

    task: str
    seed: int
    score: float
    """Mean return over 20 episodes with fixed seeds, deterministic actions; of a game of several agents that of the
    last summaries."""
    steps: int
    seconds: float
    """Of training, processes' start included."""
    curve: list[tuple[int, float]]
    """(step, mean return of the episodes that ended since the point before), while training."""
    sources: str
    """Digest of what it was made with."""


def machine_kind() -> str:
    """Return what kind of machine this is: scores of two libraries are compared on the same kind."""
    return f"{os.cpu_count()} cores, {platform.machine()}"


def folder() -> Path:
    """Return where scores are kept."""
    return Path(os.environ.get("LUDUS_LEARN_FOLDER", ROOT / ".learn"))


def score_of(task: Task, seed: int) -> Score:
    """Return the score of one seed: the stored one if it is up to date, else train.

    Skips the test where a package of the task is not installed.
    """
    if task.needs:
        pytest.importorskip(task.needs, reason=f"{task.name} needs {task.needs}: make learn installs the extra `learn`")
    stored = folder() / f"{task.name}-{seed}.json"
    if stored.exists():
        score = read(stored)
        if score.sources == digest(task):
            return score
    score = _train(task, seed)
    stored.parent.mkdir(exist_ok=True)
    temporary = stored.with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(score)))
    temporary.rename(stored)
    return score


def read(path: Path) -> Score:
    """Read a stored score."""
    fields = json.loads(path.read_text())
    return Score(**{**fields, "curve": [(step, value) for step, value in fields["curve"]]})


def digest(task: Task) -> str:
    """Return what a score of this task depends on, as one short text."""
    behavior = json.dumps([task.env_id, task.environments, task.behavior], sort_keys=True)
    return hashlib.sha256(f"{_sources()} {behavior}".encode()).hexdigest()[:16]


@cache
def _sources() -> str:
    contents = hashlib.sha256()
    for source in SOURCES:
        for path in sorted((ROOT / source).rglob("*.py")):
            contents.update(path.relative_to(ROOT).as_posix().encode())
            contents.update(path.read_bytes())
    return contents.hexdigest()


def _train(task: Task, seed: int) -> Score:
    scratch = folder() / f"{task.name}-{seed}"
    shutil.rmtree(scratch, ignore_errors=True)
    begin = time.monotonic()
    outcome = train(
        task.document(seed), scratch, task.game, task.environments, seconds=7200.0, arguments=task.arguments
    )
    seconds = time.monotonic() - begin
    assert outcome.outcome == "succeeded", f"{task.name}, seed {seed}: {outcome.outcome}; see {scratch}/trainer.log"
    curve = outcome.series.get("Environment/Cumulative Reward", [])
    if task.is_team_game:
        score = fmean(value for _, value in curve[-LAST:])
    else:
        score = play(outcome.folder / f"{task.behavior_name}.onnx", task.env_id, EPISODES)
    shutil.rmtree(scratch)
    return Score(
        task.name,
        seed,
        score,
        outcome.step,
        seconds,
        curve,
        digest(task),
    )
