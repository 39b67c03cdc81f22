"""Wakes an event loop from other threads."""

import asyncio
from collections.abc import Callable
from contextlib import suppress


def on_loop(act: Callable[[], object]) -> Callable[[], None]:
    """Return a function for any thread that schedules `act` on the running loop, unless the loop has ended."""
    loop = asyncio.get_running_loop()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop has ended, and its tasks with it
            loop.call_soon_threadsafe(act)

    return wake
