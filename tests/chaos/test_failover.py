"""A failover of the database: it takes no writes for a while, or another server takes its place. docs/failover.md."""

import secrets
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest
import structlog
from sqlalchemy import text

from server.kit.db.database import Database
from tests.chaos.cluster import WORKERS, Cluster, Simulators
from tests.chaos.disturbances import Scene, going_on
from tests.chaos.servers import Cable, Postgres, Redis, Standby
from tests.chaos.witness import Witness
from tests.e2e.stack import cartpole
from tests.waiting import eventually, never

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(900)]
log = structlog.get_logger()

READ_ONLY_SECONDS = 4.0
ENTRANCE = "127.0.0.4"
"""Under this address the cluster reaches the primary, whichever it is."""


class Site:
    """A cluster that trains a run, with a database that it reaches over a cable."""

    def __init__(self, folder: Path, over: ExitStack) -> None:
        self.primary, redis = Postgres(folder), Redis()
        for server in (self.primary, redis):
            over.callback(server.crash)
            server.start()
        self.cable = Cable((ENTRANCE, self.primary.port), ("127.0.0.1", self.primary.port))
        over.callback(self.cable.cut)
        self.cable.mend()
        url = self.primary.url.replace("127.0.0.1", ENTRANCE)
        self.cluster = Cluster(
            folder / "home", LUDUS_DATABASE__URL=url, LUDUS_QUEUE__BROKER_URL=redis.url, LUDUS_STORAGE__ROOT=str(folder)
        )
        over.callback(self.cluster.stop)

    def processes(self) -> set[int]:
        """Return all processes with connections: roles, workers, and their slots."""
        roles = {self.cluster.service(name).pid for name in ("api", "gateway", "controller", *WORKERS)}
        slots = (child for name in WORKERS for child in self.cluster.service(name).children())
        return roles | {slot.pid for slot in slots if "worker.trainer" not in slot.cmdline()}


@pytest.fixture
def site() -> Iterator[Site]:
    folder = Path(tempfile.gettempdir()) / f"ludus-chaos-{secrets.token_hex(4)}"
    folder.mkdir(mode=0o755)  # PostgreSQL's own user has to come in
    with ExitStack() as over:
        over.callback(shutil.rmtree, folder, ignore_errors=True)
        yield Site(folder, over)


@contextmanager
def asked(api: str) -> Iterator[Counter[int]]:
    """Create and list runs all the time; count the statuses of the answers."""
    statuses, stop = Counter[int](), threading.Event()

    def ask() -> None:
        with httpx2.Client(base_url=api, timeout=30) as client:
            while not stop.wait(0.05):
                for answer in (client.get("/v1/runs"), create(client)):
                    statuses[answer.status_code] += 1
                    if answer.status_code == 503:
                        assert answer.headers["Retry-After"]

    def create(client: httpx2.Client) -> httpx2.Response:
        made = client.post("/v1/runs", json={"config": cartpole()})
        if made.status_code == 201:
            client.post(f"/v1/runs/{made.json()['id']}:cancel")
        return made

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield statuses
    finally:
        stop.set()
        thread.join()


def outlived(site: Site, tmp_path: Path, disturb: Callable[[], None]) -> Counter[int]:
    """Have a run train through a disturbance; assert that no process and no attempt ended, and nothing is lost.

    Return the statuses of answers meanwhile.
    """
    with site.cluster.client() as client:
        run = client.runs.create(cartpole(max_steps=10**7)).id
        witness, simulators = Witness(site.cluster.api, run), Simulators(site.cluster.gateway, run)
        scene = Scene(site.cluster, run, simulators)
        try:
            going_on(scene)
            before = site.processes()
            with asked(site.cluster.api) as statuses:
                disturb()
                going_on(scene)
            assert site.processes() == before, "no process has ended"
            assert [each.ended_at for each in client.runs.attempts(run)] == [None], "no run was taken from its worker"
            second = client.runs.create(cartpole(max_steps=10**7)).id
            eventually(lambda: client.runs.get(second).attempt == 1, "the idle worker takes another run", 60)
            client.runs.cancel(second)
            assert all(slot.silent_since is None for slot in client.workers.list())
            client.runs.stop(run)
            assert client.runs.wait(run, timeout=60).state == "SUCCEEDED"
        finally:
            witness.stop()
            simulators.stop()
        witness.hold_to_account(client, tmp_path)
    log.info("answered", **{str(status): count for status, count in statuses.items()})
    return statuses


def test_a_database_that_takes_no_writes_for_a_while_ends_nothing(site: Site, tmp_path: Path) -> None:
    others = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'ludus'"

    def close_for_a_while() -> None:
        site.primary.ask("ALTER DATABASE postgres SET default_transaction_read_only = on", others)
        never(lambda: len(site.processes()) < 7, "a process ends", READ_ONLY_SECONDS)
        site.primary.ask("SET default_transaction_read_only = off", "ALTER DATABASE postgres RESET ALL", others)

    statuses = outlived(site, tmp_path, close_for_a_while)

    assert statuses[503] > 0, "writes were refused"
    assert statuses[200] > 0
    assert 500 not in statuses, "no outage is called a defect"


def test_a_primary_that_is_replaced_while_connections_with_it_are_left_is_left_for_its_successor(
    site: Site, tmp_path: Path
) -> None:
    """What a proxy or a moved address does: new connections lead to the new primary, and those that are open stay."""
    folder = site.primary.folder / "standby"
    folder.mkdir(mode=0o755)
    standby = Standby(folder, site.primary)
    standby.start()
    clients = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'ludus'"
    in_use = f"{clients} AND state_change > now() - interval '5 s'"

    def replace() -> None:
        site.primary.ask("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
        standby.promote()
        site.cable.redirect(("127.0.0.1", standby.port))
        assert site.primary.ask(clients) > 4, "the old ones are left"
        eventually(lambda: site.primary.ask(in_use) == 0, "nothing asks the former primary any more", 60)
        assert standby.ask(in_use) > 4

    try:
        statuses = outlived(site, tmp_path, replace)
    finally:
        standby.crash()

    assert 500 not in statuses, "no outage is called a defect"


def test_an_address_with_several_servers_leads_to_the_one_that_takes_writes() -> None:
    folder = Path(tempfile.gettempdir()) / f"ludus-chaos-{secrets.token_hex(4)}"
    with ExitStack() as over:
        for each in (folder, folder / "standby"):
            each.mkdir(mode=0o755)
        over.callback(shutil.rmtree, folder, ignore_errors=True)
        primary = Postgres(folder)
        over.callback(primary.crash)
        primary.start()
        standby = Standby(folder / "standby", primary)
        over.callback(standby.crash)
        standby.start()
        hosts = "&".join(f"host=127.0.0.1:{server.port}" for server in (standby, primary))
        database = Database(f"postgresql+psycopg://ludus@/postgres?{hosts}&target_session_attrs=read-write")
        over.callback(database.close)

        def port() -> int:
            with database.write() as session:
                session.execute(text("CREATE TABLE IF NOT EXISTS things (id int)"))
                return int(session.execute(text("SELECT inet_server_port()")).scalar_one())

        assert port() == primary.port
        standby.promote()
        primary.crash()
        assert port() == standby.port
