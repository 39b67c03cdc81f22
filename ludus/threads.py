"""An unexpected end of a thread ends its process.

A process that goes on without one of its threads looks healthy from outside, does half of its work, and is restarted by
nothing. One that ends is: by `ludus up`, the service manager, the pool of a worker's slots, or the trainer. Errors that
a thread expects (an outage, a game that has left) are its own matter.
"""

import os
import sys
import threading
from collections.abc import Callable
from typing import Final

THREAD_FAILED: Final = 70
"""Exit code of a process that ended with one of its threads: EX_SOFTWARE of sysexits.h."""


def end_with_any_thread(tell: Callable[[threading.ExceptHookArgs], object] = threading.__excepthook__) -> None:
    """Make this process end when an exception ends one of its threads; `tell` reports it first.

    At once, without waiting for other threads or cleaning up: everything survives the death of a process anyway, and
    little is certain to work now.
    """

    def failed(hook: threading.ExceptHookArgs) -> None:
        if issubclass(hook.exc_type, SystemExit):
            return
        try:
            tell(hook)
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        finally:
            os._exit(THREAD_FAILED)

    threading.excepthook = failed
