"""`python -m worker.collector --channel FD --parent PID`: one collector process. Started by `CollectorPool` alone."""

import argparse
import gc
import signal
import socket

import uvloop

from server.logging import configure_logging
from worker.collector.process import die_with_parent, serve, wait_for_settings


def main() -> None:
    """Import everything, wait for settings, serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--channel", type=int, required=True, help="descriptor of the Unix socket to the learner")
    parser.add_argument("--parent", type=int, required=True, help="process id of the learner")
    arguments = parser.parse_args()
    die_with_parent(arguments.parent)
    configure_logging("collector")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal interrupts the learner too, which decides
    told = wait_for_settings(socket.socket(fileno=arguments.channel))
    if told is None:
        return
    uvloop.run(serve(*told))
    gc.freeze()  # the learner waits for the end: what is left, torch's modules above all, the kernel frees at once


if __name__ == "__main__":
    main()
