"""Docstrings of fields are read by several threads at once: requests for the HTTP API's description come at once."""

import gc
import threading
import time
from collections.abc import Iterator

import pytest

from ludus.config.behavior import PPOConfig, SACConfig
from ludus.config.run import RunConfig
from ludus.docstrings import field_texts
from server.kit.settings import ControllerSettings, DatabaseSettings, WorkerSettings

KINDS = (PPOConfig, SACConfig, RunConfig, ControllerSettings, DatabaseSettings, WorkerSettings)


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns while the collector of garbage runs, which it does every few objects."""

    def switch(_phase: str, _info: dict[str, int]) -> None:
        time.sleep(0)  # allow: sleep, because it hands the interpreter to another thread

    before = gc.get_threshold()
    gc.callbacks.append(switch)
    gc.set_threshold(50)
    yield
    gc.set_threshold(*before)
    gc.callbacks.remove(switch)


@pytest.mark.usefixtures("switching")
def test_threads_that_read_at_once_all_get_the_texts() -> None:
    """Without a lock, CPython 3.11 raises SystemError: it counts the depths of both trees in one variable."""
    expected = {kind: field_texts(kind) for kind in KINDS}
    field_texts.cache_clear()
    found: list[object] = []
    begin = threading.Barrier(4)

    def read() -> None:
        begin.wait()
        try:
            found.append({kind: field_texts(kind) for kind in KINDS})
        except SystemError as error:
            found.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [expected] * 4
