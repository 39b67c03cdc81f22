"""kill -9 in the middle of something: before the first policy, while a policy is published, while a checkpoint or a
model is written or stored, and while a run pauses.

Each process of the stack has a hook that kills it in a function, once a file with the name of the moment is there.
"""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ludus.client import Client
from ludus.schemas import Checkpoint, Run
from tests.e2e.stack import LudusUp, Player, cartpole, wait_for_step
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(400)]

MOMENTS = {
    "the first behavior is announced": ("worker.trainer.registry", "BehaviorRegistry.register"),
    "a policy is published": ("ludus.collector.weights", "WeightBuffers.write"),
    "a collector reads a policy": ("ludus.collector.behaviors", "Behaviors.load"),
    "the state of a checkpoint is written": ("worker.trainer.checkpoint", "_write_tensors"),
    "a model is exported": ("worker.onnx.export", "_check_answers"),
    "a checkpoint is copied to the store": ("server.kit.artifacts.folder", "_copy_folder"),
    "a checkpoint is in the store, and not entered": ("server.checkpoints.writer", "CheckpointWriter.add"),
}
"""Moment -> module and function: the process that calls it dies before it does."""
COLLECTOR_DIES = "a collector reads a policy"
"""The moment after which the attempt goes on."""
PAUSING = ["the state of a checkpoint is written", "a checkpoint is in the store, and not entered"]
"""In the trainer, and in the slot."""

HOOK = """
import functools, os, signal, sys, threading, time
from pathlib import Path

FOLDER, MOMENTS = Path({folder!r}), {moments!r}

def killing(moment, function):
    @functools.wraps(function)
    def wrapped(*arguments, **named):
        try:
            (FOLDER / moment).rename(FOLDER / f"{{moment}}, {{os.getpid()}}")
        except FileNotFoundError:
            return function(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)
    wrapped.moment = moment
    return wrapped

def hook():
    while True:
        for moment, (module, name) in MOMENTS.items():
            *inside, last = name.split(".")
            holder = functools.reduce(lambda found, part: getattr(found, part, None), inside, sys.modules.get(module))
            function = getattr(holder, last, None)
            if function is not None and not hasattr(function, "moment"):
                setattr(holder, last, killing(moment, function))
        time.sleep(0.02)

def start():
    threading.Thread(target=hook, name="moments", daemon=True).start()

start()
os.register_at_fork(after_in_child=start)
"""
"""`sitecustomize`, which every interpreter imports that starts."""

Kill = Callable[[str], None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the files that name moments."""
    return tmp_path_factory.mktemp("moments")


@pytest.fixture(scope="module")
def stack(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LudusUp]:
    site = tmp_path_factory.mktemp("site")
    (site / "sitecustomize.py").write_text(HOOK.format(folder=str(folder), moments=MOMENTS), encoding="utf-8")
    up = LudusUp(
        tmp_path_factory.mktemp("home"),
        PYTHONPATH=os.pathsep.join([str(site), os.environ["PYTHONPATH"]]),
        LUDUS_WORKER__LEASE_SECONDS="3",
        LUDUS_WORKER__HEARTBEAT_SECONDS="0.5",
        LUDUS_CONTROLLER__RESTART_BUDGET="20",
    )
    yield up
    up.stop()


@pytest.fixture
def kill(folder: Path) -> Kill:
    """Return a function that has the next process die that comes to a moment, and waits until it has."""

    def at(moment: str) -> None:
        former = {*folder.glob(f"{moment}, *")}
        (folder / moment).touch()
        eventually(lambda: {*folder.glob(f"{moment}, *")} - former, f"a process dies when {moment}")

    return at


def sound(client: Client, run: Run) -> dict[str, Checkpoint]:
    """Return the checkpoints that are listed, each of which is complete in the store."""
    listed = {each.id: each for each in client.checkpoints.list(run.id)}
    for checkpoint in listed.values():
        assert client.checkpoints.verify(run.id, checkpoint.id).sound, checkpoint
    return listed


def test_at_whatever_moment_a_process_dies_the_run_goes_on_from_what_was_acknowledged(
    client: Client, play: Callable[..., Player], kill: Kill
) -> None:
    run = client.runs.create(cartpole(keep_checkpoints=1000))
    play(run.id)
    for number, moment in enumerate(MOMENTS):
        if number > 0:
            wait_for_step(client, run, client.runs.get(run.id).step + 1100)
        before, listed = client.runs.get(run.id).attempt, sound(client, run)

        kill(moment)

        if moment != COLLECTOR_DIES:
            eventually(lambda: client.runs.get(run.id).attempt > before, f"another attempt, after: {moment}")  # noqa: B023
            attempt = max(client.runs.attempts(run.id), key=lambda each: each.number)
            former = [each for each in sound(client, run).values() if each.attempt < attempt.number]
            assert attempt.resume_step == max((each.step for each in former), default=0)
            assert listed.keys() <= {each.id for each in former}
    wait_for_step(client, run, client.runs.get(run.id).step + 1100)
    assert [event for event in client.events.list(run.id) if event.type == "collector_died"]
    client.runs.stop(run.id)
    assert client.runs.wait(run.id, timeout=60).state == "SUCCEEDED"


@pytest.mark.parametrize("moment", PAUSING)
def test_a_run_pauses_although_its_trainer_or_its_slot_dies_while_it_does(
    client: Client, play: Callable[..., Player], kill: Kill, moment: str
) -> None:
    run = client.runs.create(cartpole(checkpoint_interval=10**6))
    play(run.id)
    wait_for_step(client, run, 600)
    saved = client.checkpoints.get(run.id, client.checkpoints.save(run.id))
    killing = threading.Thread(target=kill, args=(moment,))
    killing.start()

    client.runs.pause(run.id)

    killing.join()
    paused = eventually(lambda: now if (now := client.runs.get(run.id)).state == "PAUSED" else None, "the pause")
    assert (paused.stop_reason, paused.attempt) == ("user", 1)
    assert saved.id in sound(client, run)
    client.runs.resume(run.id)
    _, second = eventually(
        lambda: found if len(found := client.runs.attempts(run.id)) == 2 else None, "a second attempt"
    )
    wait_for_step(client, run, second.resume_step + 600)
    assert second.resume_step == max(each.step for each in sound(client, run).values() if each.attempt == 1)
    client.runs.stop(run.id)
    assert client.runs.wait(run.id, timeout=60).state == "SUCCEEDED"
