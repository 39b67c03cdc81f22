"""Tests of the worker run torch on one thread, with the shapes in signatures checked at every call."""

import structlog
import torch
from hypothesis import settings
from jaxtyping import install_import_hook

from tests.examples import examples

# Before the first import of what it watches: a wrong shape or dtype is an error in tests, and costs nothing elsewhere.
WATCHED = [
    "worker.learning.functional",
    "worker.learning.networks",
    "worker.learning.algorithms",
    "worker.learning.rewards",
]
install_import_hook(WATCHED, "beartype.beartype")
torch.set_num_threads(1)

# The first call into torch's kernels, and a busy machine, take longer than any deadline that would mean something.
settings.register_profile("worker", deadline=None, max_examples=examples(50))
settings.load_profile("worker")

# What fails on purpose is logged with its traceback. Rich ones, with the tensors in them, take seconds.
plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
structlog.configure(processors=[*structlog.get_config()["processors"][:-1], plain])
