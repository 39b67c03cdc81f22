"""The edge collector of a command: it runs on a thread, and games on this machine connect to its port."""

import asyncio
import logging
import threading
from typing import Final, Self

from ludus.event_loop import run
from ludus.sdk.errors import SimulatorError
from ludus.sdk.join import RunEnd, Target

logger = logging.getLogger("ludus.games")

CLIENT: Final = "ludus-simulate"
START_SECONDS: Final = 60.0


class OwnCollector:
    """An edge collector that works during the block, which ends with it."""

    def __init__(self, target: Target) -> None:
        self.outcome: RunEnd | SimulatorError | None = None
        """How its run ended, or why it gave up; None while it works."""
        self.address = ""
        """`host:port` where simulators connect; they need no token."""
        self._target = target
        self._thread = threading.Thread(target=lambda: run(self._run()), name="edge-collector", daemon=True)
        self._listens = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._listens.wait(START_SECONDS):
            raise RuntimeError(f"the edge collector of this command did not start within {START_SECONDS:.0f} s")
        return self

    def __exit__(self, *_error: object) -> None:
        if self._loop is not None and self._task is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    async def _run(self) -> None:
        # What it needs, a light installation lacks.
        from ludus.collector.edge.process import edge_collector  # noqa: PLC0415

        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            async with edge_collector(self._target, logger.log) as edge:
                self.address = edge.address
                self._listens.set()
                self.outcome = await edge.run()
                await asyncio.Event().wait()  # simulators that ask now are told how the run ended
        except SimulatorError as error:
            logger.log(logging.ERROR, error)
            self.outcome = error
        except asyncio.CancelledError:
            pass
