"""A learner that starts two collectors, prints their process ids, and waits to be killed."""

import signal

from ludus.collector.settings import CollectorSettings
from worker.collectors.pool import CollectorPool

if __name__ == "__main__":
    pool = CollectorPool(CollectorSettings("run", 1, 7, count=2))
    pool.start()
    print(*[child.warm.process.pid for child in pool._children if child.warm is not None], flush=True)  # noqa: T201
    signal.pause()
