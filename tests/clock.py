"""Time that tests decide about."""


class Clock:
    """A monotonic clock that the test winds."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
