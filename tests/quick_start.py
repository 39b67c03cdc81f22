"""A plugin of pytest that saves processor time around the tests; `addopts` in pyproject.toml names it.

It is imported before conftest.py, whose imports take most of a second.
"""

import gc

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

gc.disable()  # nothing that is imported is garbage, and looking for it takes a quarter of the start's time


def pytest_collection_finish() -> None:
    """Collect garbage from now on, but spare what was imported: it lives until the end."""
    gc.freeze()
    gc.set_threshold(10_000)  # by default it takes a twentieth of the tests' time
    gc.enable()


class Scheduling(LoadGroupScheduling):
    """`--dist loadgroup` that forgets what is done: xdist 3.8 counts through it after each of ten thousand tests."""

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Forget a group whose last test this is."""
        super().mark_test_complete(node, item_index, duration)
        groups = self.assigned_work[node]
        group = self._split_scope(self.registered_collections[node][item_index])
        if all(groups[group].values()):
            del groups[group]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """Return the scheduler for `--dist loadgroup`."""
    return Scheduling(config, log) if config.getoption("dist") == "loadgroup" else None
