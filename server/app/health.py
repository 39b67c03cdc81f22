"""`python -m server.app.health ROLE`: the exit code that a container's health check wants, 0 for healthy.

`api` asks the API of this container, `gateway` connects to its port, `worker` looks for a recent sign of life of this
host's slots in the database, `database` (for the steward, which listens nowhere) for the database's answer.
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
    """Tell whether the API answers that it is ready, or turns this check away because its certificate is not wanted."""
    connection = connect_api(address(settings.api.host, settings.api.port), settings.api.tls, 4)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException) as error:
        return turned_away(error, settings.api.tls)
    finally:
        connection.close()


def gateway(settings: Settings) -> bool:
    """Tell whether the gateway accepts connections."""
    return listens(address(settings.gateway.host, settings.gateway.port))


def worker(settings: Settings) -> bool:
    """Tell whether a slot of this host was heard of lately."""
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
    """Tell whether the database answers."""
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
    """Check the role that is named."""
    sys.exit(0 if CHECKS[sys.argv[1]](Settings()) else 1)


if __name__ == "__main__":
    main()
