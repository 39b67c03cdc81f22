"""Trainers that do what a test wants, each a function of the connection to the supervisor and the job.

`supervising.Threaded` runs one on a thread of the test's process, `supervising.Separate` in a process of its own:

    python -m tests.worker.host.supervisor.trainers NAME DESCRIPTOR ARGUMENTS

with the keyword arguments as JSON.
"""

import ctypes
import faulthandler
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

from ludus.logging import configure_logging, redirect_output
from server.ladders.refs import PlayedMatch, PlayedParticipant
from server.metrics.points import MetricPoint
from server.runs.refs import EdgeCollectorRef
from worker.collectors.events import EdgeReaderFailed
from worker.trainer.connection import TrainerConnection
from worker.trainer.messages import (
    Amend,
    Amended,
    CheckpointCommitted,
    CheckpointDeclined,
    CheckpointWritten,
    Command,
    EdgeCollectors,
    EditParameters,
    EventRecord,
    Finished,
    Job,
    Listening,
    MatchesPlayed,
    Metrics,
    OpenPlaces,
    ParameterStates,
    Progress,
    SaveCheckpoint,
)

POLL_SECONDS = 0.02


def finishes(connection: TrainerConnection, job: Job) -> None:
    """Finish at once."""
    connection.post(Finished(outcome="succeeded", reason="completed", detail="all is learned"))


def lingers(connection: TrainerConnection, job: Job, seconds: float) -> None:
    """Finish, and take so long to end: so does an interpreter that has imported torch on a busy machine."""
    finishes(connection, job)
    connection.close()
    time.sleep(seconds)  # allow: sleep, because the process of a finished trainer lives on


def dies(connection: TrainerConnection, job: Job) -> None:
    """Write a checkpoint and end without a last message."""
    write_checkpoint(connection, job, "interval", "Walker")


def plays(connection: TrainerConnection, job: Job) -> None:
    """Report a match that the policy wins and one that it loses."""
    participants = (
        PlayedParticipant(behavior="Striker", team=0, snapshot=None, step=500),
        PlayedParticipant(behavior="Striker", team=1, snapshot=3, step=300),
    )
    for number, outcome in ((1, "win"), (2, "loss")):
        match = PlayedMatch(
            number=number,
            behavior="Striker",
            simulator=7,
            at=1000.0 + number,
            step=500,
            participants=participants,
            outcome=outcome,  # type: ignore[arg-type]
            truncated=False,
            rated=True,
            elo=1200.5,
        )
        connection.post(MatchesPlayed(matches=[match]))
    finishes(connection, job)


def edits(connection: TrainerConnection, job: Job) -> None:
    """Apply two edits of environment parameters, and finish where no third one comes."""
    count = 0
    while count < 2:
        time.sleep(POLL_SECONDS)  # allow: sleep, because a trainer looks for messages between two updates
        for message in connection.commands():
            assert isinstance(message, EditParameters), message
            for edit in message.edits:
                count += 1
                state = {"name": edit.parameter, "lesson": edit.lesson or 1, "lessons": 3}
                state |= {"lesson_name": str(edit.value), "value": 1.0, "waits_for": f"edit {edit.seq}"}
                connection.post(ParameterStates(parameters=[state], edit=edit.seq))
    time.sleep(0.5)  # allow: sleep, because an edit that is passed on twice comes with a later heartbeat
    assert connection.commands() == [], "each edit is passed on once"
    finishes(connection, job)


def opens_places(connection: TrainerConnection, job: Job) -> None:
    """Be told to open places, once; say that an edge collector collects, and (which is another case) that none can."""
    while not (told := connection.commands()):
        time.sleep(POLL_SECONDS)  # allow: sleep, because a trainer looks for messages between two updates
    assert told == [OpenPlaces()], told
    connection.post(EdgeCollectors(collectors=[EdgeCollectorRef(1, "desk", "here", 1.0)]))
    connection.post(EdgeReaderFailed("no free port"))
    time.sleep(0.5)  # allow: sleep, because a wish that is passed on twice comes with a later heartbeat
    assert connection.commands() == [], "the wish is passed on once"
    finishes(connection, job)


def speaks(connection: TrainerConnection, job: Job, *, listens: bool, talks: bool) -> None:
    """Go on until told to hand back; report `Listening` at the start and progress all the time, if so wanted."""
    sys.stdout.write(f"speaks {os.getpid()}\n")
    sys.stdout.flush()
    if listens:
        connection.post(Listening(endpoints=[]))
    number = 0
    while True:
        number += 1
        if talks:
            connection.post(Progress(step=number, simulators=0))
            connection.post(EventRecord(name="spoken", message=str(number)))
        for message in connection.commands():
            if isinstance(message, Command) and message.action == "release":
                connection.post(Finished(outcome="released", detail="handed back"))
                return
        time.sleep(0.05)  # allow: sleep, because it is the pace of this trainer


def summarizes(connection: TrainerConnection, job: Job, flag: str) -> None:
    """Make a step and a summary again and again, until a file exists."""
    step = 0
    while not Path(flag).exists():
        step += 1
        connection.post(Progress(step=step, simulators=0))
        point = MetricPoint(behavior="CartPole", key="reward", step=step, at=time.time(), value=1.0)
        connection.post(Metrics(points=[point]))
        time.sleep(POLL_SECONDS)  # allow: sleep, because it is the pace of this trainer
    finishes(connection, job)


def summarizes_until_saved(connection: TrainerConnection, job: Job, seconds: float) -> None:
    """Write a checkpoint, and summaries faster than they can be written, until it is stored or the time is over."""
    connection.post(Listening(endpoints=[]))
    step, deadline = 0, time.monotonic() + seconds
    stored = False
    while not stored and time.monotonic() < deadline:
        step += 1
        connection.post(Metrics(points=[MetricPoint("CartPole", "reward", step, time.time(), float(step))]))
        if step == 50:  # by now more summaries have come than are written in a second
            write_checkpoint(connection, job, "interval", "CartPole")
        time.sleep(0.002)  # allow: sleep, because it is the pace of this trainer
        stored = any(isinstance(message, CheckpointCommitted) for message in connection.commands())
    connection.post(EventRecord(name="ended", message="stored" if stored else "starved", data={"step": step}))
    finishes(connection, job)


def ignores(connection: TrainerConnection, job: Job) -> None:
    """Report progress and ignore every command."""
    connection.post(Listening(endpoints=[]))
    while True:
        connection.post(Progress(step=0, simulators=0))
        time.sleep(0.05)  # allow: sleep, because it is the pace of this trainer


def is_killed(connection: TrainerConnection, job: Job, counts: str, kills: int) -> None:
    """End by SIGKILL, while the kernel's count of out-of-memory kills becomes `kills`."""
    Path(counts).write_text(f"oom_kill {kills}\n")
    os.kill(os.getpid(), signal.SIGKILL)


def fails(connection: TrainerConnection, job: Job) -> None:
    """Report an error as the last message."""
    detail = "ZeroDivisionError: division by zero"
    connection.post(Finished(outcome="lost", reason="trainer_error", detail=detail))


def raises(connection: TrainerConnection, job: Job) -> None:
    """End with a traceback in the log."""
    log_to_file(job)
    raise RuntimeError("no more room on the device")


def crashes(connection: TrainerConnection, job: Job) -> None:
    """End with a segmentation fault."""
    log_to_file(job)
    faulthandler.enable()
    ctypes.string_at(0)


def resumes(connection: TrainerConnection, job: Job) -> None:
    """Report the content of the checkpoint that the job names, and finish."""
    found = json.loads((Path(job.resume_from) / "state.json").read_text()) if job.resume_from else None
    connection.post(EventRecord(name="resumed", message=str(found)))
    finishes(connection, job)


def serves_requests(connection: TrainerConnection, job: Job) -> None:
    """Apply changes, decline the first request for a checkpoint, write one for each other request, and pause."""
    for amendment in job.amendments:
        connection.post(Amended(amendment=amendment, step=0))
    requests: list[int] = []
    while True:
        time.sleep(POLL_SECONDS)  # allow: sleep, because a trainer looks for messages between two updates
        for message in connection.commands():
            match message:
                case Amend():
                    for amendment in message.amendments:
                        connection.post(Amended(amendment=amendment, step=64))
                case SaveCheckpoint(request=1):
                    connection.post(CheckpointDeclined(request=1, detail="nothing was learned"))
                case SaveCheckpoint():
                    requests.append(message.request)
                    write_checkpoint(connection, job, "requested", "CartPole", message.request)
                case Command(action="pause"):
                    assert len(requests) == len(set(requests)), "each request is passed on once"
                    connection.post(Finished(outcome="paused", reason="user", detail="paused on request"))
                    return
                case CheckpointCommitted():
                    pass
                case _:
                    raise AssertionError(message)


def pauses_late(connection: TrainerConnection, job: Job) -> None:
    """Pause only once a second command has come."""
    connection.post(EventRecord(name="begun", message="It has its job."))
    actions: list[object] = []
    while len(actions) < 2:
        time.sleep(POLL_SECONDS)  # allow: sleep, because a trainer looks for messages between two updates
        actions += [getattr(message, "action", message) for message in connection.commands()]
    assert actions == ["pause", "stop"], actions
    connection.post(Finished(outcome="paused", reason="user", detail="paused on request"))


def counts(connection: TrainerConnection, job: Job, number: int, seconds: float) -> None:
    """Report so many events over so many seconds."""
    connection.post(Listening(endpoints=[]))
    for each in range(number):
        connection.post(EventRecord(name="counted", message=str(each)))
        time.sleep(seconds / number)  # allow: sleep, because it is the pace of this trainer
    finishes(connection, job)


def floods(connection: TrainerConnection, job: Job, number: int) -> None:
    """Report so many events at once."""
    for each in range(number):
        connection.post(EventRecord(name="counted", message=str(each)))
    finishes(connection, job)


def stops(connection: TrainerConnection, job: Job) -> None:
    """Stop when told to, once the last checkpoint is acknowledged."""
    connection.post(Listening(endpoints=[]))
    while True:
        time.sleep(POLL_SECONDS)  # allow: sleep, because a trainer looks for messages between two updates
        for message in connection.commands():
            match message:
                case Command(action="stop"):
                    write_checkpoint(connection, job, "final", "CartPole")
                case CheckpointCommitted():
                    connection.post(Finished(outcome="succeeded", reason="user", detail="stopped on request"))
                    return


def talks_first(connection: TrainerConnection, job: Job, flag: str, seconds: float) -> None:
    """Wait for a file, report many events before `Listening`, and finish after so many seconds."""
    while not Path(flag).exists():
        time.sleep(POLL_SECONDS)  # allow: sleep, because it waits for a file
    for number in range(40):
        connection.post(EventRecord(name="counted", message=str(number)))
    connection.post(Listening(endpoints=[]))
    time.sleep(seconds)  # allow: sleep, because it learns meanwhile
    finishes(connection, job)


def logs_much(connection: TrainerConnection, job: Job, seconds: float) -> None:
    """Write a log that is too large to be published whole, beside which no file can be written."""
    connection.post(Listening(endpoints=[]))
    assert job.log_path is not None
    log = Path(job.log_path)
    log.with_name("published-trainer.log").mkdir()
    log.write_bytes(b"x" * (9 << 20))
    time.sleep(seconds)  # allow: sleep, because the log is published meanwhile
    finishes(connection, job)


def write_checkpoint(
    connection: TrainerConnection, job: Job, reason: str, behavior: str, request: int | None = None
) -> None:
    folder = Path(job.scratch) / f"checkpoint-{request or 1}"
    folder.mkdir()
    (folder / "state.json").write_text("{}")
    connection.post(
        CheckpointWritten(
            folder=str(folder),
            step=7,
            steps={behavior: 7},
            reason=reason,  # type: ignore[arg-type]
            keep=5,
            metrics={behavior: None},
            request=request,
        )
    )


def log_to_file(job: Job) -> None:
    assert job.log_path is not None
    redirect_output(Path(job.log_path))
    configure_logging("trainer")


def main(name: str, descriptor: str, arguments: str) -> None:
    """Run one trainer; end at once if the supervisor is silent for a lease."""
    connection = TrainerConnection(socket.socket(fileno=int(descriptor)), lambda reason: os._exit(9))
    job = connection.await_job()
    connection.start(job.lease_seconds)
    globals()[name](connection, job, **json.loads(arguments))
    connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
