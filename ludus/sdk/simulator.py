"""The SDK's public face: make a game a simulator of a training run.

    class Catch(Simulation):
        behaviors = [BehaviorSpec("Catcher", (ObservationSpec((3,)),), ActionSpec(discrete_branches=(3,)))]

        def reset(self, turn, start):
            ...
            turn.decide(agent=0, observation=[...])

        def step(self, turn, actions):
            for action in actions:
                ...
            turn.decide(agent=0, observation=[...], reward=1.0)

    ending = connect(Catch(), run="catch")

`examples/custom_simulator.py` is a whole game. Games of Gymnasium and PettingZoo need no code: `ludus.adapters`, or
`ludus simulate gymnasium:CartPole-v1 --run NAME` from a shell.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from ludus.paths import AnyPath
from ludus.protocol.batches import ActionBatch, Aggregation, DecisionBatch, Outcome, TerminalBatch
from ludus.protocol.codes import CloseCode
from ludus.protocol.options import DEFAULT_SERVER
from ludus.protocol.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from ludus.sdk.connection import Dialer, Ending, logger
from ludus.sdk.errors import CannotConnect, SessionRefused, SimulatorError
from ludus.sdk.join import Target
from ludus.sdk.parameter_draws import EnvironmentParameters
from ludus.sdk.simulation import ResumableSimulation, Simulation, Start
from ludus.sdk.steps import Action, Actions, Turn

__all__ = [
    "DEFAULT_SERVER",
    "Action",
    "ActionBatch",
    "ActionSpec",
    "Actions",
    "Aggregation",
    "BehaviorSpec",
    "CannotConnect",
    "CloseCode",
    "DecisionBatch",
    "DimensionProperty",
    "Ending",
    "EnvironmentParameters",
    "ObservationSpec",
    "ObservationType",
    "Outcome",
    "ResumableSimulation",
    "SessionRefused",
    "Simulation",
    "SimulatorError",
    "Start",
    "TerminalBatch",
    "Turn",
    "connect",
]


def connect(
    simulation: Simulation,
    *,
    run: str,
    server: str = DEFAULT_SERVER,
    token: str | None = None,
    label: str = "",
    ca_file: AnyPath | None = None,
    patience_seconds: float | None = 300.0,
) -> Ending:
    """Play in a run until it ends, and say how it ended.

    `run` is a run's id or name, `server` the gateway's host:port, `token` the gateway's bearer token (by default that
    in LUDUS_SIMULATOR_TOKEN, else in LUDUS_TOKEN; empty: none), `label` what people read in the list of simulators;
    `ca_file` (PEM) turns TLS on, and LUDUS_CLIENT_CERTIFICATE and LUDUS_CLIENT_KEY name what to show to a gateway that
    wants a certificate. Waits while the run is queued or paused; reconnects with exponential back-off for as long as
    the gateway has been out of reach for less than `patience_seconds` (None: for ever). What it waits for is logged to
    the logger `ludus.sdk.simulator`, and printed to standard error by a program that has not configured logging.

    Raises CannotConnect when trying again is pointless (wrong token, no such run, ...) or patience is at its end, and
    SessionRefused when the server rejected what the simulation sent. Must not be called inside a running event loop.
    """
    target = Target(server, run, token, label, ca_file, patience_seconds)
    try:
        with _heard(logger):
            return asyncio.run(Dialer(simulation, target).play())
    finally:
        simulation.close()


@contextmanager
def _heard(logger: logging.Logger) -> Iterator[None]:
    """Print what is logged for the length of the block, unless the program has decided what becomes of it."""
    if logger.hasHandlers() or logger.getEffectiveLevel() != logging.WARNING:
        yield
        return
    handler = logging.StreamHandler()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
