"""A run's results on the user's machine, in the layout of ML-Agents' `results/<run>`: written from the HTTP API alone.

    Mirror(client, run, Folder("results/first")).sync()      as often as one likes, while the run trains

`mirror` puts it together; `folder` has the paths and the record of written files, so that a second start goes on
where the first one ended; `events` writes TensorBoard's files, `configuration`, `status` and `timers` the files of
those names, `console` the lines that `mlagents-learn` prints and users' tools read.
"""

from ludus.mlagents.results.folder import Folder
from ludus.mlagents.results.mirror import Mirror

__all__ = ["Folder", "Mirror"]
