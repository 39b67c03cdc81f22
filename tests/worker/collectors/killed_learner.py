"""A learner that starts two collectors, prints their process ids, and waits to be killed."""

import signal

from ludus.collector.settings import CollectorSettings
from worker.collectors.pool import CollectorPool

if __name__ == "__main__":
    pool = CollectorPool(CollectorSettings("run", 1, 7, count=2))
    pool.start()
    print(*[child.process.pid for child in pool.children if child.process is not None], flush=True)  # noqa: T201
    signal.pause()
