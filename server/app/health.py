"""Health check of a container whose API speaks TLS: `python -m server.app.health` exits with 0 if the API is ready.

All other checks need no interpreter: `docker/health`.
"""

import http.client
import sys

from server.kit.ports import address, connect_api, turned_away
from server.kit.settings import Settings


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


def main() -> None:
    """Check the API of this container."""
    sys.exit(0 if api(Settings()) else 1)


if __name__ == "__main__":
    main()
