"""`run_logs/timers.json`: gauges of all metrics, and the duration of the run, in the form of ML-Agents' file.

ML-Agents times its own Python calls. Of a run on a server two durations are known: until training began, and training
itself; the tree has those two. A gauge is a metric's newest summary with the smallest and the largest one (`.mean`);
`.sum` exists if it is the same number, for `Step` and `Is Training`.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ludus.mlagents.results.status import installed
from ludus.protocol.options import COMMUNICATION_VERSION, ML_AGENTS_VERSION

FORMAT_VERSION = "0.1.0"


@dataclass(frozen=True)
class Gauge:
    """A metric over the whole run."""

    behavior: str
    key: str
    value: float
    """The newest."""
    smallest: float
    largest: float
    count: int
    summed: bool = False
    """Whether the sum of a summary is its value."""


def timers(created: float, started: float, ended: float, gauges: Iterable[Gauge], command: str) -> dict[str, Any]:
    """Return the content of the file. `command` is the command line.

    The times of the run are in seconds since 1970-01-01 UTC; `started` equals `ended` if training never began.
    """
    written: dict[str, Any] = {}
    for gauge in gauges:
        name = f"{gauge.behavior}.{gauge.key}".replace("/", ".").replace(" ", "")
        content = {"value": gauge.value, "min": gauge.smallest, "max": gauge.largest, "count": gauge.count}
        written[f"{name}.mean"] = content
        if gauge.summed:
            written[f"{name}.sum"] = dict(content)
    setup, learning = started - created, ended - started
    return {
        "name": "root",
        "gauges": written,
        "metadata": {
            "timer_format_version": FORMAT_VERSION,
            "start_time_seconds": str(int(created)),
            "python_version": sys.version.replace("\n", ""),
            "command_line_arguments": command,
            "mlagents_version": ML_AGENTS_VERSION,
            "mlagents_envs_version": ML_AGENTS_VERSION,
            "communication_protocol_version": COMMUNICATION_VERSION,
            "pytorch_version": installed("torch"),
            "numpy_version": installed("numpy"),
            "end_time_seconds": str(int(ended)),
        },
        "total": setup + learning,
        "count": 1,
        "self": 0.0,
        "children": {
            "run_training.setup": {"total": setup, "count": 1, "self": setup},
            "TrainerController.start_learning": {"total": learning, "count": 1, "self": learning},
        },
    }
