"""Errors of worker hosts and slots."""

from collections.abc import Sequence

from server.kit.errors import Conflict, NotFound


class HostCordoned(Conflict, code="host_cordoned"):
    """A slot stays cordoned because its host is."""

    worker_id: str
    host: str
    sentence = (
        "Worker {worker_id} is cordoned with its host: lift the cordon of {host} (`ludus worker uncordon {host}`)."
    )


class PoolNotFound(NotFound, code="pool_not_found"):
    """The settings declare no pool of this name."""

    pool: str
    pools: Sequence[str]

    def _sentence(self) -> str:
        declared = f"those there are: {', '.join(self.pools)}" if self.pools else "none is declared"
        return f"There is no pool {self.pool!r}; {declared} (LUDUS_SCHEDULING__POOLS)."
