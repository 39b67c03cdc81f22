"""The comparison: learning in one go against learning with a checkpoint and a fresh process in the middle."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ludus.collector.messages import spec_from_text
from ludus.protocol.spec import BehaviorSpec
from server.config.config import CloneConfig, RunConfig
from worker.learning.algorithms.algorithm import Algorithm
from worker.learning.algorithms.bc import Cloning
from worker.learning.build import Demonstrations, build_algorithm, build_clone
from worker.trainer.checkpoint import COLLECTORS, ENVIRONMENT_PARAMETERS, behavior_states, load, save
from worker.trainer.curriculum import EnvironmentParameterManager
from worker.trainer.initialization import resume
from worker.verification.differences import differences, entries
from worker.verification.experience import make_round

CLONE_STEPS = 8
"""Gradient steps that stand for an update, where demonstrations are imitated."""


class CannotVerify(ValueError):
    """The checkpoint or its configuration does not allow the comparison; the message says why, and what to do."""


@dataclass(frozen=True)
class Job:
    """What to verify."""

    config: RunConfig
    checkpoint: Path
    """Folder with the two files of a checkpoint."""
    seed: int
    demonstrations: Mapping[str, str] = field(default_factory=dict)
    """Where the demonstration with each id lies."""
    updates: int = 4
    """Learnt in all; the cut is in the middle. At least 2."""


@dataclass(frozen=True)
class Row:
    """One entry of a checkpoint."""

    behavior: str
    """Empty for what belongs to the run as a whole."""
    entry: str
    entries: int
    """Tensors and values that it has."""
    restored: bool | None
    """Whether it is the same when it is loaded and asked for again; None where that was not tried."""
    exact: bool | None
    """Whether it ends with the same bits, cut or not; None where it does not change by learning."""
    differs: tuple[str, ...] = ()
    """Where it does not."""
    note: str = ""

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong with it."""
        return self.restored is not False and self.exact is not False


def verify(job: Job) -> list[Row]:
    """Compare. Raise `CannotVerify`, `CheckpointDamaged`, or what building the networks raises."""
    state = load(job.checkpoint)
    rows: list[Row] = []
    for behavior, saved in behavior_states(state).items():
        rows += _verify_behavior(job, behavior, saved)
    return [*rows, *_of_the_run(job, state)]


def learn(job: Job, behavior: str, saved: Mapping[str, Any], first: int, last: int) -> dict[str, Any]:
    """Load a behavior's state, learn updates `first` to `last` (exclusive); return the state and their metrics."""
    learner = _Pupil(job, behavior, saved)
    measured = [learner.update(number) for number in range(first, last)]
    return {**learner.state(), "measured": measured}


class _Pupil:
    """One behavior, loaded."""

    def __init__(self, job: Job, behavior: str, saved: Mapping[str, Any]) -> None:
        config = job.config.behavior(behavior)
        if config is None:
            raise CannotVerify(f"the run's configuration has no behavior {behavior!r}, which its checkpoint has")
        self._job, self._config = job, config
        self._step = int(saved["progress"]["step"])
        demonstrations, device = Demonstrations(job.demonstrations), torch.device("cpu")
        self._algorithm: Algorithm | Cloning
        if isinstance(config, CloneConfig):
            self._algorithm, self._spec, _ = build_clone(config, behavior, device, job.seed, demonstrations)
        else:
            self._spec = _spec_of(behavior, saved)
            self._algorithm = build_algorithm(config, self._spec, device, job.seed, demonstrations)
        resume(self._algorithm, self._spec, saved["algorithm"])

    def update(self, number: int) -> dict[str, float]:
        """Learn once; return the metrics."""
        if isinstance(self._config, CloneConfig):
            assert isinstance(self._algorithm, Cloning)
            return self._algorithm.iterate(CLONE_STEPS)
        assert not isinstance(self._algorithm, Cloning)
        rollout = make_round(self._config, self._spec, self._algorithm, seed=self._job.seed, number=number)
        self._step += rollout.steps
        return dict(self._algorithm.update(rollout, self._step) or {})

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint would hold of it."""
        return {"progress": {"step": self._step}, "algorithm": self._algorithm.state_dict()}


def _spec_of(behavior: str, saved: Mapping[str, Any]) -> BehaviorSpec:
    if "spec" not in saved:
        raise CannotVerify(
            f"the checkpoint does not say what {behavior!r} sees and does: an older release wrote it. Verify one that "
            "this release has written"
        )
    return spec_from_text(saved["spec"])


def _verify_behavior(job: Job, behavior: str, saved: Mapping[str, Any]) -> Iterator[Row]:
    """Yield a row for each entry of a behavior's state."""
    loaded = _Pupil(job, behavior, saved).state()["algorithm"]
    begun = {"progress": saved["progress"], "algorithm": saved["algorithm"], "spec": saved.get("spec")}
    whole = learn(job, behavior, begun, 0, job.updates)
    with tempfile.TemporaryDirectory(prefix="ludus-verify-") as text:
        folder = Path(text)
        cut = job.updates // 2
        half, end = folder / "half", folder / "end"
        for each in (half, end):
            each.mkdir()
        begun = {**begun, **learn(job, behavior, begun, 0, cut)}
        save(half, {behavior: begun})
        _go_on_elsewhere(job, behavior, half, end, cut)
        pieced = load(end)[behavior]
    note = "" if saved["algorithm"].get("replay", 0) is not None else "save_replay_buffer is false: it begins empty"
    for name, part in _parts(saved["algorithm"]):
        wrong = tuple(differences(_part(whole["algorithm"], name), _part(pieced["algorithm"], name), name))
        kept = differences(part, _part(loaded, name), name)
        yield Row(
            behavior,
            name,
            entries(part),
            restored=not kept,
            exact=not wrong,
            differs=(*kept, *wrong),
            note=note if name == "replay" else "",
        )


def _go_on_elsewhere(job: Job, behavior: str, half: Path, end: Path, first: int) -> None:
    """Learn the rest in a process of its own."""
    config = half / "config.json"
    config.write_text(job.config.model_dump_json(), encoding="utf-8")
    command = [sys.executable, "-m", "worker.verification", str(half), str(config), "--seed", str(job.seed)]
    command += ["--updates", str(job.updates), "--go-on", behavior, str(first), str(end)]
    for name, path in job.demonstrations.items():
        command += ["--demonstration", f"{name}={path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotVerify(f"the process that should go on with {behavior!r} failed:\n{done.stderr.strip()}")


def _parts(algorithm: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the entries of an algorithm's state; each reward signal is one of its own."""
    for key, value in algorithm.items():
        if key == "signals":
            for name, signal in value.items():
                yield f"signals/{name}", signal
        else:
            yield key, value


def _part(algorithm: Mapping[str, Any], name: str) -> Any:
    first, _, second = name.partition("/")
    return algorithm[first][second] if second else algorithm[first]


def _of_the_run(job: Job, state: Mapping[str, Any]) -> Iterator[Row]:
    """Yield rows of what belongs to the run, or is brought back with simulators only."""
    lessons = state.get(ENVIRONMENT_PARAMETERS)
    if lessons is not None:
        config = job.config.with_seed(job.seed)
        manager = EnvironmentParameterManager(
            config.lessons(), config.first_lessons(), progress=lambda _: None, rating=lambda _: None
        )
        manager.load_state_dict(lessons["manager"])
        wrong = tuple(differences(lessons["manager"], manager.state_dict(), "lessons"))
        yield Row("", "lessons", entries(lessons), restored=not wrong, exact=None, differs=wrong)
    for behavior, saved in behavior_states(state).items():
        for name in ("self_play", "collection"):
            if name in saved:
                yield Row(behavior, name, entries(saved[name]), None, None, note="comes back with simulators")
    held = state.get(COLLECTORS, [])
    sessions = sum(len(each["sessions"]) for each in held)
    some = "1 simulator goes on where it was" if sessions == 1 else f"{sessions} simulators go on where they were"
    note = some if sessions else "simulators begin new episodes"
    yield Row("", "collectors", entries(held), None, None, note=note)
