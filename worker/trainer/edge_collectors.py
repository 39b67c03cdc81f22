"""The edge collectors of an attempt: the events of the run about them, and the list that the supervisor publishes."""

import time
from dataclasses import asdict, replace

from ludus.collector.messages import CollectorLags
from server.simulators.repository import EdgeCollectorRef
from worker.collectors.events import EdgeCollectorJoined, EdgeCollectorLeft, EdgeReaderFailed
from worker.trainer.attempt import Attempt
from worker.trainer.messages import EdgeCollectors, PlacesUnavailable


class EdgeCollectorReports:
    """Reports the edge collectors of one attempt. Only the trainer's main thread uses it."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._present: dict[int, EdgeCollectorRef] = {}
        """By place."""

    def handle(self, event: EdgeCollectorJoined | EdgeCollectorLeft | CollectorLags | EdgeReaderFailed) -> None:
        """Report what has happened to one."""
        report, facts = self._attempt.report, asdict(event)
        match event:
            case EdgeCollectorJoined():
                self._present[event.index] = EdgeCollectorRef(event.index, event.host, event.peer, time.time())
                report("collector_joined", f"Edge collector {event.index} collects on {event.host}", **facts)
            case EdgeCollectorLeft():
                self._present.pop(event.index, None)
                report(
                    "collector_left",
                    f"Edge collector {event.index} left ({event.reason}); {event.lost_steps} steps are lost",
                    level="warning",
                    **facts,
                )
            case CollectorLags():
                known = self._present.get(event.collector)
                if known is not None:
                    lagging = replace(known, lagged_at=time.time(), waiting_bytes=event.waiting)
                    self._present[event.collector] = lagging
                report(
                    "collector_lags",
                    f"Edge collector {event.collector} lags: {event.waiting >> 20} MiB wait for its network, which is "
                    "slower than its games. They play on when half of it is sent",
                    level="warning",
                    **facts,
                )
            case EdgeReaderFailed():
                self._attempt.supervisor.post(PlacesUnavailable(detail=event.reason))
                return
        self._attempt.supervisor.post(EdgeCollectors(collectors=[each for _, each in sorted(self._present.items())]))
