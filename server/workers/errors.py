"""Errors of worker hosts and slots."""

from server.kit.errors import Conflict


class HostCordoned(Conflict, code="host_cordoned"):
    """A slot stays cordoned because its host is."""

    worker_id: str
    host: str
    sentence = "Worker {worker_id} is cordoned with its host: lift the cordon of {host} (`ludus worker uncordon {host}`)."
