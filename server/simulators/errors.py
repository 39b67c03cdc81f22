"""Errors of simulators."""

from server.kit.errors import Conflict, NotFound


class RunClosed(Conflict, code="run_ended"):
    """The run takes no simulators any more."""

    run_id: str
    state: str
    sentence = "Run {run_id} has ended ({state}) and takes no simulators any more. Create a new run."


class NoPlaces(Conflict, code="no_places"):
    """The run takes no edge collectors."""

    run_id: str
    sentence = (
        "Run {run_id} takes no edge collectors (simulators.collectors.edge is 0 in its configuration): connect its "
        "games without one (--collect there), or create the run with places."
    )


class PlacesUnavailable(Conflict, code="places_unavailable"):
    """The worker of the run can't take edge collectors."""

    run_id: str
    detail: str
    sentence = (
        "The worker of run {run_id} can't take edge collectors: {detail}. Connect the games without one (--collect "
        "there). If a port is missing, LUDUS_WORKER__PORT_RANGE needs one more than the worker has collectors."
    )


class SimulatorNotFound(NotFound, code="simulator_not_found"):
    """The run has had no such simulator."""

    run_id: str
    session_id: str
    sentence = "Run {run_id} has had no simulator {session_id!r}. List the run's simulators."
