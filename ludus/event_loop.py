"""The event loop of processes that answer games: uvloop where it is installed."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine as `asyncio.run` does. The extra `collect` brings uvloop, except on Windows."""
    try:
        import uvloop  # noqa: PLC0415  a light installation lacks it
    except ImportError:
        return asyncio.run(work)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)
