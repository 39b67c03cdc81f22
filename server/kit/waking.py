"""From a thread to an event loop: the one thing that may be done to a loop from outside."""

import asyncio
from collections.abc import Callable
from contextlib import suppress


def on_loop(act: Callable[[], object]) -> Callable[[], None]:
    """Return a function that any thread may call: it has `act` done on the running loop, if that still runs."""
    loop = asyncio.get_running_loop()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop has ended; so has whoever would be woken
            loop.call_soon_threadsafe(act)

    return wake
