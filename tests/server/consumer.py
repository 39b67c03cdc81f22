"""A consumer process for `test_queue.py`: a real Celery worker that writes down each message it gets.

`python -m tests.server.consumer HOME OUTPUT [KIND...]`: of slots of these kinds.
"""

import os
import sys
from pathlib import Path

from server.kit.queue import TaskName, make_celery, queues_of
from server.kit.settings import Settings


def main(home: str, output: str, *kinds: str) -> None:
    """Consume until killed."""
    settings = Settings(home=Path(home))
    celery = make_celery(settings)
    celery.conf.task_queues = queues_of(kinds)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @celery.task(name=TaskName.TRAIN)  # type: ignore[untyped-decorator]
    def train(run_id: str) -> None:
        os.write(descriptor, f"{run_id}\n".encode())

    celery.worker_main(
        ["worker", "--pool=solo", "--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR"]
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
