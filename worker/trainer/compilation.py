"""`torch_settings.compile`: fuses the update's operations by `torch.compile` in the background.

Compiling takes from 20 seconds to minutes, and happens when a function is first called, again when it is called with
other shapes, and again when a scheduled number has changed. So a twin of the algorithm, built from the same
configuration, makes these calls in a thread of its own, on the first round: compiled code belongs to the function, and
the algorithm itself finds it there. Measured (2 x 128 units, minibatches of 64): the twin is ready after 20 s on an
idle core; the first update after the change and those after it take 0.04 s, eager ones 0.12 s.

The compilers (a C++ compiler, for GPUs Triton's) run in processes of their own; the rest shares the
interpreter with the learner's thread, whose updates are slower meanwhile. After an error, such as a missing compiler,
updates stay uncompiled, and an event says so.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from worker.experience.rollout import Rollout
from worker.learning.algorithms.algorithm import Algorithm, Compilable
from worker.learning.networks.visual import VisualEncoder

log = structlog.get_logger()

ATTEMPTS = 8
"""Most updates of the twin."""
SETTLED = 3.0
"""An update that takes less than so many times the eager one's time has compiled nothing any more."""


class BackgroundCompilation:
    """Compiles one algorithm's updates, once."""

    def __init__(self, algorithm: Algorithm, twin: Callable[[], Algorithm], report: Callable[[str, str], None]) -> None:
        """`twin` builds another algorithm like it; `report(event, message)` reports an event."""
        self._algorithm = algorithm
        self._twin = twin
        self._report = report
        self._thread: threading.Thread | None = None
        self._failure: str | None = None
        self._over = False
        if not isinstance(algorithm, Compilable):
            self._over = True
            report("compilation_not_used", "this algorithm's updates can't be compiled")

    def before_update(self, rollout: Rollout, step: int) -> None:
        """Begin with the first round; change over as soon as the compiled code is there. Never waits."""
        if self._over:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._compile, args=(rollout, step), name="compile", daemon=True)
            self._thread.start()
        elif not self._thread.is_alive():
            self._over = True
            if self._failure is None:
                assert isinstance(self._algorithm, Compilable)
                self._algorithm.compile()
                self._report("compiled", f"updates are compiled from step {step} on")
            else:
                self._report("compilation_failed", f"updates stay as they are, uncompiled: {self._failure}")

    def join(self, timeout: float) -> bool:
        """Wait for the compiler; return whether it has come to an end. For tests and benchmarks."""
        if self._thread is not None:
            self._thread.join(timeout)
        return self._thread is not None and not self._thread.is_alive()

    def _compile(self, rollout: Rollout, step: int) -> None:
        try:
            find_compiler()
            twin = self._twin()
            eager = _seconds(twin, rollout, step)
            assert isinstance(twin, Compilable)
            twin.compile()
            for later in range(1, ATTEMPTS + 1):
                if _seconds(twin, rollout, step + later * rollout.steps) < SETTLED * eager:
                    break
        except Exception as error:  # the edge of the thread: whatever a compiler says, training goes on
            log.exception("compilation_failed")
            self._failure = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"


def find_compiler() -> None:
    """Raise if there is no C++ compiler, which GPUs need too: torch would find out after half a minute of work."""
    from torch._inductor.cpp_builder import get_cpp_compiler  # noqa: PLC0415  (seconds, for who asks for it)

    get_cpp_compiler()


def _seconds(algorithm: Algorithm, rollout: Rollout, step: int) -> float:
    """Return how long an update takes."""
    begin = time.perf_counter()
    algorithm.update(rollout, step)
    return time.perf_counter() - begin


@contextmanager
def bf16_pictures(enabled: bool) -> Iterator[None]:
    """Switch all visual encoders of this process to bfloat16 within the context, if `enabled` (`torch_settings.bf16`).

    Only the encoders of pictures change: there is nearly all of the arithmetic, and nothing that needs more than three
    digits. Weights, gradients, heads and losses stay float32. The switch is on during updates only: collectors act in
    float32, and an export is checked in float32, the arithmetic that it will be played in.

    So the learner's features are not quite those that were acted by, and the ratio of PPO's and POCA's first minibatch
    is not 1 but for rounding, as it is in float32 on the CPU: it is off by what three digits of the features make of
    the log-probability. Without `bf16` it is nearer to 1 on a GPU, but not as near: by torch's default convolutions and
    LSTMs round there what they multiply to TF32, which has three bits more than bfloat16.
    """
    before = VisualEncoder.in_bfloat16
    VisualEncoder.in_bfloat16 = enabled
    try:
        yield
    finally:
        VisualEncoder.in_bfloat16 = before
