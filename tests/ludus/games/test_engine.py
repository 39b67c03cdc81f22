"""What is typed on the game machine wins over the run's engine settings, and nothing else is touched."""

from ludus.games.engine import EngineOverrides
from ludus.protocol.side_channels import EngineConfiguration, engine_configuration, join, split

GIVEN = join(engine_configuration(EngineConfiguration(width=640, height=480)))


def test_only_what_was_typed_is_sent() -> None:
    frames = split(EngineOverrides(time_scale=1.0, capture_frame_rate=0).frames(GIVEN))

    assert frames == [
        engine_configuration(EngineConfiguration(time_scale=1.0, capture_frame_rate=0))[i] for i in (2, 4)
    ]


def test_a_width_alone_keeps_the_runs_height() -> None:
    frames = split(EngineOverrides(width=1280).frames(GIVEN))

    assert frames == engine_configuration(EngineConfiguration(width=1280, height=480))[:1]


def test_a_width_alone_has_the_default_height_where_the_run_says_nothing() -> None:
    assert split(EngineOverrides(width=1280).frames(b"")) == engine_configuration(EngineConfiguration(width=1280))[:1]


def test_frames_that_cannot_be_read_are_no_error() -> None:
    assert split(EngineOverrides(quality_level=1).frames(b"garbage"))


def test_nothing_typed_is_nothing() -> None:
    assert not EngineOverrides()
    assert EngineOverrides(time_scale=0.0)
