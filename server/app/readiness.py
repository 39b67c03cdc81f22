"""Readiness of this process, for probes that ask every few seconds.

It asks what requests need: the database. The broker is not among that, because a lost wake-up is harmless (ADR 2): the
metric `ludus_broker_up` has its state.
"""

import anyio

from server.kit.db.database import Database
from server.kit.db.migrate import check as check_schema
from server.kit.errors import LudusError
from server.kit.http.errors import NotReady


class Readiness:
    """Checks that the database answers, and once that the schema fits."""

    def __init__(self, database: Database) -> None:
        self.threads = anyio.CapacityLimiter(2)
        """Threads of their own for checks: those of requests may all be busy."""
        self._database = database
        self._schema_fits = False

    def check(self) -> None:
        """Check the database. Raises NotReady with the reason."""
        try:
            if self._schema_fits:
                self._database.ping()
            else:
                check_schema(self._database)
                self._schema_fits = True
        except LudusError as error:
            raise NotReady({"database": error}) from error
