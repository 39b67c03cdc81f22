"""`python -m server.embedded.orphan_reaper MARK`: kills the processes of a killed `ludus up`.

Nothing can act on its own SIGKILL. So `ludus up` starts this first, with a pipe as standard input whose other end
no other process holds: the end of file says that `ludus up` has ended, for any reason. The reaper also holds the lock
on the home folder meanwhile, so that the next `ludus up` doesn't start among the leftovers.
"""

import os
import signal
import sys

from server.kit.processes import sweep


def main() -> None:
    """Wait for the end of file, then sweep."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only its parent's end may end it
    while os.read(sys.stdin.fileno(), 1):
        pass
    sweep(sys.argv[1])


if __name__ == "__main__":
    main()
