"""Starts a trainer, under a supervisor or alone; see the package."""

import argparse
import atexit
import faulthandler
import gc
import os
import signal
import socket
import sys
from pathlib import Path

import structlog
import torch

from ludus.config.problems import join_path
from ludus.logging import bind_process, configure_logging, redirect_output
from ludus.schemas.states import StopReason
from server.config.document import located, parse_document
from server.config.resolution import review
from server.config.rules import refuse_unsupported
from server.kit.errors import InvalidConfig, Problem
from worker.collectors.pool import CollectorStartError
from worker.collectors.processes import WarmCollector
from worker.learning.build import DeviceMissing
from worker.trainer import messages
from worker.trainer.checkpoint import CheckpointDamaged
from worker.trainer.connection import ConnectionClosed, TrainerConnection
from worker.trainer.loop import Trainer
from worker.trainer.ranks import RankLost

log = structlog.get_logger()


class Console:
    """The supervisor port of a trainer that runs alone: prints reports, acknowledges checkpoints, stops on Ctrl-C."""

    def __init__(self) -> None:
        self._inbox: list[messages.Order] = []

    def post(self, message: messages.Message) -> None:
        """Print a report. A checkpoint stays where it is and counts as stored."""
        sys.stdout.write(messages.describe(message) + "\n")
        sys.stdout.flush()
        if isinstance(message, messages.CheckpointWritten):
            self._inbox.append(messages.CheckpointCommitted(folder=message.folder))

    def commands(self) -> list[messages.Order]:
        """Return acknowledgements, and `stop` after Ctrl-C."""
        taken, self._inbox = self._inbox, []
        return taken

    def interrupt(self) -> None:
        """Ask the trainer to finish with a checkpoint."""
        self._inbox.append(messages.Command(action="stop"))


def run_supervised(connection: socket.socket) -> int:
    """Wait warm for a job and execute it; return the exit code."""
    # The terminal's Ctrl-C is for the supervisor, which then sends a command.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    supervisor = TrainerConnection(connection, _die)
    warm = [WarmCollector.spawn()]
    try:
        job = supervisor.await_job()
    except ConnectionClosed:
        for collector in warm:
            collector.close()
        return 0
    if job.log_path is not None:
        redirect_output(Path(job.log_path))
    faulthandler.enable()
    configure_logging("trainer", level="debug" if job.config.debug else "info")
    bind_process(run_id=job.run_id, attempt=job.attempt)
    supervisor.start(job.lease_seconds)
    finished = _execute(job, supervisor, warm)
    log.info("trainer_finished", outcome=finished.outcome, reason=finished.reason, detail=finished.detail)
    supervisor.post(finished)
    supervisor.close()
    return 0 if finished.outcome not in {"failed", "lost"} else 1


def run_alone(config: Path, scratch: Path, port: int) -> int:
    """Train from a shell, without a server; return the exit code."""
    document = config.read_bytes()
    with located(document):
        run_config, warnings = review(parse_document(document), local=True)
        refuse_unsupported(run_config)
    if paths := run_config.demonstrations():
        message = "a trainer that runs alone has no uploaded demonstrations; "
        message += "name a file or folder in `demo_path` instead"
        raise InvalidConfig([Problem(join_path(path), "not_found", message) for path in paths])
    if run_config.debug:
        configure_logging("trainer", log_format="console", level="debug")
    for warning in warnings:
        log.warning("config_doubted", path=warning.path, code=warning.code, message=warning.message)
    scratch.mkdir(parents=True, exist_ok=True)
    run_config = run_config.with_seed(run_config.seed or 0)
    job = messages.Job(
        run_id="alone",
        attempt=1,
        config=run_config,
        seed=run_config.seed or 0,
        scratch=str(scratch),
        port_range=(port, port) if port else None,
    )
    console = Console()
    signal.signal(signal.SIGINT, lambda *_: console.interrupt())
    finished = _execute(job, console, [])
    console.post(finished)
    return 0 if finished.outcome == "succeeded" else 1


def _execute(job: messages.Job, supervisor: messages.SupervisorPort, warm: list[WarmCollector]) -> messages.Finished:
    """Run the trainer; turn an exception into its last message, with the traceback in the log."""
    # Half of the CPUs that this process may use, four at most: ML-Agents' rule.
    torch.set_num_threads(max(1, min(len(os.sched_getaffinity(0)) // 2, 4)))
    torch.manual_seed(job.seed)
    try:
        return Trainer(job, supervisor, warm).run()
    except DeviceMissing as error:
        log.warning("device_missing", reason=str(error))
        return messages.Finished.invalid_config(str(error))
    except CheckpointDamaged as error:
        log.exception("checkpoint_damaged")
        return messages.Finished(outcome="failed", reason=StopReason.TRAINER_ERROR, detail=str(error))
    except (CollectorStartError, RankLost) as error:
        log.warning("attempt_lost", reason=str(error))
        return messages.Finished(outcome="lost", detail=str(error))
    except Exception as error:
        log.exception("trainer_failed")
        detail = f"{type(error).__name__}: {error}"
        return messages.Finished(outcome="lost", reason=StopReason.TRAINER_ERROR, detail=detail)


def _die(reason: str) -> None:
    """Kill this process and its collectors at once: without a lease the run may be another worker's."""
    log.error("supervisor_lost", reason=reason)
    os.killpg(0, signal.SIGKILL)


def _port(text: str) -> int:
    """Read a port: beyond 16 bits gRPC would listen on another one without a word."""
    if text.isdecimal() and int(text) <= 65535:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be a port, 0 to 65535, but is {text!r}")


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m worker.trainer", description="Run one training attempt.")
    parser.add_argument("config", nargs="?", type=Path, help="configuration file, to train alone")
    parser.add_argument("--scratch", type=Path, default=Path("trainer-output"), help="folder for checkpoints (alone)")
    parser.add_argument("--port", type=_port, default=0, help="port for simulators (alone); 0: any free one")
    parser.add_argument("--channel", type=int, help="descriptor of the connection to the supervisor")
    options = parser.parse_args(arguments)
    if (options.channel is None) == (options.config is None):
        parser.error("give either CONFIG or --channel")
    if options.channel is not None:
        return run_supervised(socket.socket(fileno=options.channel))
    configure_logging("trainer", log_format="console")
    try:
        return run_alone(options.config, options.scratch, options.port)
    except OSError as error:
        parser.error(f"{error.filename}: {error.strerror}")
    except InvalidConfig as error:
        parser.error(f"{options.config} has mistakes:\n{error}")


if __name__ == "__main__":
    # Collecting torch's modules at the end takes most of a second of CPU. The kernel frees their memory at once.
    atexit.register(gc.freeze)
    sys.exit(main())
