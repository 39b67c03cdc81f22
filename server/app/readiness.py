"""Readiness of this process, for probes that ask every few seconds."""

from server.kit.db.database import Database
from server.kit.db.migrate import check as check_schema
from server.kit.errors import LudusError
from server.kit.http.errors import NotReady
from server.kit.wake_up import WakeUp


class Readiness:
    """Checks that the database and the broker answer, and once that the schema fits."""

    def __init__(self, database: Database, wake_up: WakeUp) -> None:
        self._database = database
        self._wake_up = wake_up
        self._schema_fits = False

    def check(self) -> None:
        """Check both. Raises NotReady with a reason for each that does not answer."""
        reasons: dict[str, LudusError] = {}
        for name, probe in (("database", self._check_database), ("broker", self._wake_up.ping)):
            try:
                probe()
            except LudusError as error:
                reasons[name] = error
        if reasons:
            raise NotReady(reasons)

    def _check_database(self) -> None:
        if self._schema_fits:
            self._database.ping()
        else:
            check_schema(self._database)
            self._schema_fits = True
