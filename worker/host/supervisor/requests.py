"""Sends users' changes of a run, their requests for checkpoints, and edge collectors' for places, to its trainer."""

from contextlib import suppress

import structlog

from server.kit.errors import Unavailable
from server.lifecycle.attempts.repository import AttemptLedger
from server.lifecycle.claims.repository import Claim
from worker.host.process import TrainerProcess
from worker.host.supervisor.profiles import Profiles
from worker.trainer.connection import ConnectionClosed, SupervisorConnection
from worker.trainer.messages import Amend, EditParameters, OpenPlaces, ParameterEdit, SaveCheckpoint

log = structlog.get_logger()


class UserRequests:
    """Sends each request once; the trainer leaves out those that its checkpoint knows."""

    def __init__(self, claim: Claim, ledger: AttemptLedger, profiles: Profiles) -> None:
        self._ledger = ledger
        self._profiles = profiles
        self._served: int | None = None
        """`Renewal.requests` when the requests were read last; None before the first time."""
        self._edit = 0
        """Number of the newest edit of environment parameters that was sent."""
        self._amendment = max((each.seq for each in claim.amendments), default=0)
        """Number of the newest amendment of the configuration that was sent."""
        self._request = 0
        """Number of the newest request for a checkpoint that was sent."""
        places = claim.config.get("simulators", {}).get("collectors", {})
        self._opens_places = bool(places.get("edge")) and places.get("local") != 0
        """Whether the trainer opens places for edge collectors when it is told to, and has not been told."""

    def serve(self, trainer: TrainerProcess, number: int) -> None:
        """Read the requests to the trainer if there may be new ones: `number` has moved (`Renewal.requests`)."""
        if number == self._served:
            return
        try:
            self._send(trainer.connection)
            self._profiles.begin(trainer.pid)
        except Unavailable as error:  # the next renewal has them read again
            log.warning("requests_not_read", error=str(error))
        else:
            self._served = number

    def _send(self, connection: SupervisorConnection) -> None:
        with suppress(ConnectionClosed):  # the next `receive` raises it
            if amendments := self._ledger.amendments.after(self._amendment):
                connection.send(Amend(amendments=list(amendments)))
                self._amendment = amendments[-1].seq
            request = self._ledger.checkpoints.requested()
            if request is not None and request > self._request:
                connection.send(SaveCheckpoint(request=request))
                self._request = request
            if self._opens_places and self._ledger.collectors.places_asked():
                connection.send(OpenPlaces())
                self._opens_places = False
            edits = [
                ParameterEdit(seq=seq, parameter=parameter, **change)
                for seq, parameter, change in self._ledger.parameters.edits(self._edit)
            ]
            if edits:
                connection.send(EditParameters(edits=edits))
                self._edit = edits[-1].seq
