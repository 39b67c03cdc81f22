"""Health check of a container: `python -m server.app.health ROLE` exits with 0 if the role is healthy.

`api` asks the API of this container, `gateway` connects to its port, `worker` looks for a recent heartbeat of this
host's slots in the database, `database` (for the controller, which listens nowhere) for the database's answer.
"""

import http.client
import socket
import sys
from collections.abc import Callable, Mapping

from server.kit.db.database import Database
from server.kit.errors import LudusError
from server.kit.ports import address, connect_api, listens, turned_away
from server.kit.settings import Settings
from server.workers.repository import WorkerRepository

WORKER_SILENCE_SECONDS = 30.0


def api(settings: Settings) -> bool:
    """Return whether the API is ready, or refuses this check because it demands a client certificate."""
    connection = connect_api(address(settings.api.host, settings.api.port), settings.api.tls, 4)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException) as error:
        return turned_away(error, settings.api.tls)
    finally:
        connection.close()


def gateway(settings: Settings) -> bool:
    """Return whether the gateway accepts connections."""
    return listens(address(settings.gateway.host, settings.gateway.port))


def worker(settings: Settings) -> bool:
    """Return whether a slot of this host sent a heartbeat recently."""
    here = socket.gethostname()
    database = Database.from_settings(settings.database)
    try:
        with database.read() as session:
            return any(slot.host == here for slot in WorkerRepository(session).alive(WORKER_SILENCE_SECONDS))
    except LudusError:
        return False
    finally:
        database.close()


def answering_database(settings: Settings) -> bool:
    """Return whether the database answers."""
    database = Database.from_settings(settings.database)
    try:
        database.ping()
    except LudusError:
        return False
    else:
        return True
    finally:
        database.close()


CHECKS: Mapping[str, Callable[[Settings], bool]] = {
    "api": api,
    "gateway": gateway,
    "worker": worker,
    "database": answering_database,
}


def main() -> None:
    """Check the role that the command line names."""
    sys.exit(0 if CHECKS[sys.argv[1]](Settings()) else 1)


if __name__ == "__main__":
    main()
