"""Demonstrations as columns, and the files that hold them (`.demo`, `.npz`).

    demonstration = read("expert.demo")              # ML-Agents' recordings, or our own .npz
    print(inspect(demonstration).returns)
    write(demonstration.subsample(30, seed=1), "thirty.npz")

`ludus.demonstrations.recorded.RecordedSimulation` writes them while a game is played, for `ludus simulate --record`.

Light: numpy and protobuf, no torch. Pictures in ML-Agents' recordings are PNG and need pillow (`ludus[images]`).
"""

from ludus.demonstrations.demonstration import Demonstration, DemonstrationError, check_fit, inspect, merge, thin
from ludus.demonstrations.files import FOLDER_SUFFIXES, load, read, write
from ludus.demonstrations.recording import Recorder

__all__ = [
    "FOLDER_SUFFIXES",
    "Demonstration",
    "DemonstrationError",
    "Recorder",
    "check_fit",
    "inspect",
    "load",
    "merge",
    "read",
    "thin",
    "write",
]
