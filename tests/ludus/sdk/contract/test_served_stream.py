"""A test server refuses what a real one refuses, in the same words."""

import numpy as np
import pytest

from ludus.collector.layout import ActorLayout
from ludus.collector.spec_checks import UnsupportedSpec
from ludus.config.network import NetworkSettings
from ludus.sdk import (
    Actions,
    ActionSpec,
    BehaviorSpec,
    CloseCode,
    DecisionBatch,
    ObservationSpec,
    ResetInfo,
    SessionRefused,
    Simulation,
    StepBuilder,
    connect,
)
from tests.contract.test_fake_server import Server
from tests.toys.catch import Catch


def test_a_game_that_sends_nan_is_refused_and_the_command_fails() -> None:
    class Broken(Catch):
        def reset(self, builder, start) -> None:  # type: ignore[no-untyped-def]
            nothing = (np.full((1, 3), np.nan, np.float32),)  # columns are sent as they are
            builder.request_decisions(DecisionBatch(np.zeros(1, np.int32), np.zeros(1, np.float32), nothing))

    with Server("--streams", "1") as server:
        with pytest.raises(SessionRefused):
            connect(Broken(), run="catch", server=server.address)

        assert server.end() == 1
    assert len(server.violations) == 1
    assert (
        "not_finite: behavior 'Catcher', decisions: observation 0 (board) holds NaN or infinity for agent 0"
        in server.violations[0]
    )


class Retina(Simulation):
    """A game with a picture of 8 x 8."""

    behaviors = (BehaviorSpec("Retina", (ObservationSpec((1, 8, 8)),), ActionSpec(continuous_size=1)),)

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        builder.request_decision(0, [np.zeros((1, 8, 8), np.float32)])

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        builder.request_decision(0, [np.zeros((1, 8, 8), np.float32)])


def test_a_picture_that_is_too_small_for_the_runs_encoder_is_refused_as_by_a_real_server() -> None:
    with Server("--streams", "1") as server:
        with pytest.raises(SessionRefused) as raised:
            connect(Retina(), run="catch", server=server.address)

        assert server.end() == 1
    with pytest.raises(UnsupportedSpec) as real:
        ActorLayout.of(Retina.behaviors[0], NetworkSettings())
    assert raised.value.code == CloseCode.BAD_SPEC
    assert server.violations == [f"stream 0: bad_spec: {real.value}"]


def test_a_picture_that_is_large_enough_for_the_runs_encoder_is_accepted() -> None:
    with Server("--steps", "5", "--streams", "1", "--vis-encode-type", "match3") as server:
        assert connect(Retina(), run="catch", server=server.address).finished

        assert server.end() == 0
