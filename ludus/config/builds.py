"""Start and engine settings of Unity builds: `env_settings` and `engine_settings`.

The server starts no builds. `ludus unity` and `ludus learn` do, on the game's machine, by these sections of the run's
configuration; collectors send the engine settings to every build that connects.
"""

from typing import Annotated

from pydantic import Field, StringConstraints

from ludus.config.values import Flag, PositiveReal, Section, Text, Whole

MAX_PIXELS = 16_384
"""Largest width and height of a window."""


class EnvironmentSettings(Section):
    """The build to start, the number of copies, and the restarts of those that end."""

    env_path: Annotated[Text, StringConstraints(min_length=1, max_length=4096)] | None = None
    """The build. A path on the game's machine, which a server refuses: `ludus unity --env` takes it."""
    env_args: list[Annotated[Text, StringConstraints(max_length=4096)]] | None = Field(default=None, max_length=1000)
    """Further arguments for the build."""
    base_port: Whole = Field(default=5005, ge=1, le=65_535)
    """Port of the first build on the game's machine; the others use the next ports."""
    num_envs: Whole = Field(default=1, ge=1, le=256)
    """Number of builds to start."""
    num_areas: Whole = Field(default=1, ge=1, le=100_000)
    """Training areas in each build, sent when it connects."""
    timeout_wait: Whole = Field(default=60, ge=1, le=10**6)
    """Seconds that a build may take for a step: the default of `simulators.step_timeout_seconds`."""
    seed: Whole = Field(default=-1, ge=-1, le=2**31 - 1)
    """Seed of everything random, as `seed` at the top of the document is; -1 = none."""
    max_lifetime_restarts: Whole = Field(default=10, ge=-1, le=10**6)
    """Restarts of each build in all; -1 = no limit."""
    restarts_rate_limit_n: Whole = Field(default=1, ge=-1, le=10**6)
    """Restarts of each build within `restarts_rate_limit_period_s`; -1 = no limit."""
    restarts_rate_limit_period_s: Whole = Field(default=60, ge=0, le=10**6)
    """Seconds over which `restarts_rate_limit_n` is counted."""


class EngineSettings(Section):
    """Settings of the game's engine."""

    width: Whole = Field(default=84, ge=1, le=MAX_PIXELS)
    """Width of the window in pixels."""
    height: Whole = Field(default=84, ge=1, le=MAX_PIXELS)
    """Height of the window in pixels."""
    quality_level: Whole = Field(default=5, ge=0, le=100)
    """Unity's quality level."""
    time_scale: PositiveReal = Field(default=20.0, le=1e6)
    """Seconds of the game's time per second; Unity allows at most 100."""
    target_frame_rate: Whole = Field(default=-1, ge=-1, le=10**6)
    """Frames that the engine tries to draw in a second; -1 = no limit."""
    capture_frame_rate: Whole = Field(default=60, ge=0, le=10**6)
    """Frames in a second of the game's time; 0 = the engine's own."""
    no_graphics: Flag = False
    """Start builds without graphics; cameras then see nothing."""
    no_graphics_monitor: Flag = False
    """Start the first build with graphics and all others without."""
