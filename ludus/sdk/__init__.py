"""The SDK: make a game a simulator of a training run. Import from here; the modules of this package are private.

    class Catch(Simulation):
        behaviors = [BehaviorSpec("Catcher", (ObservationSpec((3,)),), ActionSpec(discrete_branches=(3,)))]

        def reset(self, builder, start):
            ...
            builder.request_decision(agent=0, observation=[...])

        def step(self, builder, actions):
            for action in actions:
                ...
            builder.request_decision(agent=0, observation=[...], reward=1.0)

    ending = connect(Catch(), run="catch")

`examples/custom_simulator.py` is a whole game. Games of Gymnasium and PettingZoo need no code: `ludus.adapters`, or
`ludus simulate gymnasium:CartPole-v1 --run NAME` from a shell.
"""

from ludus.protocol.batches import ActionBatch, Aggregation, DecisionBatch, Outcome, TerminalBatch
from ludus.protocol.codes import CloseCode
from ludus.protocol.options import DEFAULT_SERVER
from ludus.protocol.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from ludus.sdk.connection import ConnectionSummary, connect
from ludus.sdk.environment_parameters import EnvironmentParameters
from ludus.sdk.errors import CannotConnect, SessionRefused, SimulatorError
from ludus.sdk.simulation import ResetInfo, ResumableSimulation, Simulation
from ludus.sdk.steps import Action, Actions, StepBuilder

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
    "ConnectionSummary",
    "DecisionBatch",
    "DimensionProperty",
    "EnvironmentParameters",
    "ObservationSpec",
    "ObservationType",
    "Outcome",
    "ResetInfo",
    "ResumableSimulation",
    "SessionRefused",
    "Simulation",
    "SimulatorError",
    "StepBuilder",
    "TerminalBatch",
    "connect",
]
