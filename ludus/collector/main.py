"""The main function of a collector process: `--channel FD`. `CollectorPool` starts it."""

import argparse
import faulthandler
import gc
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import structlog
import uvloop

from ludus.child_process import end_with_parent
from ludus.collector.acting import PolicyFactory
from ludus.collector.channel import Channel
from ludus.collector.commands import Settings
from ludus.collector.process import say_why, serve, wait_for_settings
from ludus.collector.snapshots.state import State
from ludus.logging import configure_logging

log = structlog.get_logger()


def main(policies: PolicyFactory) -> None:
    """Run a collector. The caller has imported everything."""
    run("collector", lambda channel, start, restored: serve(channel, policies, start, restored))


def run(process: str, work: Callable[[Channel, Settings, State | None], Coroutine[Any, Any, None]]) -> None:
    """Wait for settings, then do the work of a process of the trainer; `process` names it in its log."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--channel", type=int, required=True, help="descriptor of the Unix socket to the learner")
    arguments = parser.parse_args()
    end_with_parent()
    configure_logging(process)
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal interrupts the learner too, which decides
    channel = Channel(socket.socket(fileno=arguments.channel))
    try:
        start = wait_for_settings(channel)
        if start is None:
            return
        uvloop.run(work(channel, *start))
    except Exception as error:  # the edge of the process
        # A port or a file that is not to be had is the operator's matter: the reason says all. Else a mistake of ours.
        log.exception("collector_failed", reason=str(error), exc_info=not isinstance(error, OSError))
        say_why(channel, error)
        sys.exit(1)
    finally:
        gc.freeze()  # the learner waits for the end: what is left, torch's modules above all, the kernel frees at once
