"""The name of this program, which it sends to the server."""

import platform
from importlib.metadata import PackageNotFoundError, version


def client_name(client: str) -> str:
    """Describe this program to the server, as in `ludus-python/1.0 (Linux x86_64, Python 3.11)`.

    It is part of a run's fingerprint. Short: the server takes 100 bytes, and adds to that of the Unity bridge.
    """
    try:
        named = f"{client}/{version('ludus')}"
    except PackageNotFoundError:
        named = client
    python = ".".join(platform.python_version_tuple()[:2])
    return f"{named} ({platform.system()} {platform.machine()}, Python {python})"
