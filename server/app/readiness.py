"""Can this process do its work? Asked by probes, every few seconds."""

from server.app.bell import Bell
from server.kit.db.database import Database
from server.kit.db.migrate import check as check_schema
from server.kit.errors import LudusError
from server.kit.http.errors import NotReady


class Readiness:
    """Asks the database and the broker for a sign of life, and once for the schema."""

    def __init__(self, database: Database, bell: Bell) -> None:
        self._database = database
        self._bell = bell
        self._schema_fits = False

    def check(self) -> None:
        """Raise NotReady with everything that does not answer."""
        reasons: dict[str, LudusError] = {}
        for name, probe in (("database", self._check_database), ("broker", self._bell.ping)):
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
