"""Runs train in a cluster that evicts pods at random, and takes a new release meanwhile.

In one cluster the base runs with PostgreSQL and a folder of artifacts, in the other the production overlay with its
PgBouncer, which is evicted as well, a bucket, and TLS.
LUDUS_TEST_EVICTIONS is the number of evictions, LUDUS_TEST_SEED repeats their order. LUDUS_TEST_FORMER names the commit
of the release that the cluster runs at first; without it the new release is the same code.
"""

import itertools
import os
import random
import secrets
import shutil
import statistics
import subprocess
import tarfile
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import httpx2
import psycopg
import pytest
import structlog

from ludus.client import Client
from tests.chaos.cluster import Simulators
from tests.chaos.servers import Postgres, Redis, Server, program
from tests.chaos.witness import Witness
from tests.e2e.stack import cartpole
from tests.kubernetes.kubelet import Kubelet, faults
from tests.kubernetes.pod import RunningPod
from tests.kubernetes.rendered import Manifests, kustomize, render
from tests.s3 import ACCESS_KEY, SECRET_KEY, needs_s3, serve_s3
from tests.waiting import eventually

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(kustomize() is None, reason="needs kubectl or kustomize"),
]
log = structlog.get_logger()

ROOT = Path(__file__).resolve().parents[2]
OVERLAY = "tests/kubernetes/overlay"
"""In a checkout."""
FORMER = os.environ.get("LUDUS_TEST_FORMER")
EVICTIONS = int(os.environ.get("LUDUS_TEST_EVICTIONS", "200"))
RUNS = 3
SUMMARY_STEPS = 5000
CONFIG = cartpole(max_steps=10**8, summary_freq=SUMMARY_STEPS, checkpoint_interval=SUMMARY_STEPS)
CONFIG["simulators"] = {"grace_seconds": 300}
ROLES = ("api", "gateway", "controller", "worker")
HOST = "ludus.test"
"""In the place of LUDUS.EXAMPLE.COM in the production overlay."""
PASSWORD = secrets.token_urlsafe(16)
"""Of the user `ludus` of PgBouncer."""
UNSETTLED = 3
"""So many pods may start or end at once: more would only wait for a processor. PgBouncer's end is a pause, and free."""
LOOK_AFTER = 20
"""After so many evictions each run must have come further."""
LAST_STEPS = 20_000
POLL_SECONDS = 0.2


class Poller:
    """A client without patience: a connection for each request, no second try. Counts each answer.

    It reads the paths, and gives the first run a new name, in turn.
    """

    def __init__(self, server: str, token: str, paths: list[str], run: str) -> None:
        self.answers: Counter[int] = Counter()
        self.failures: list[str] = []
        self.name = ""
        """The last one whose request was answered."""
        self._server, self._paths = server, paths
        self._written = f"/v1/runs/{run}"
        self._headers = {"Authorization": f"Bearer {token}", "Connection": "close"}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="poller")
        self._thread.start()

    def _poll(self) -> None:
        with httpx2.Client(base_url=self._server, headers=self._headers, timeout=60, trust_env=False) as client:
            for number in itertools.count():
                if self._over.wait(POLL_SECONDS):
                    return
                for path in self._paths:
                    self._ask(client, "GET", path)
                name = f"round-{number}"
                if self._ask(client, "PATCH", self._written, {"name": name}):
                    self.name = name

    def _ask(self, client: httpx2.Client, method: str, path: str, body: object = None) -> bool:
        """Return whether the answer was 200."""
        try:
            answer = client.request(method, path, json=body)
        except httpx2.HTTPError as error:
            self.failures.append(f"{time.strftime('%X')} {method} {path}: {error!r}")
            return False
        self.answers[answer.status_code] += 1
        if answer.status_code != 200:
            self.failures.append(f"{time.strftime('%X')} {method} {path}: {answer.status_code} {answer.text}")
        return answer.status_code == 200

    def stop(self) -> None:
        """Stop asking."""
        self._over.set()
        self._thread.join()


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = Path(tempfile.gettempdir()) / f"ludus-kubernetes-{secrets.token_hex(4)}"
    folder.mkdir(mode=0o755)  # PostgreSQL's own user has to come in
    yield folder
    if os.environ.get("LUDUS_TEST_KEEP") is None:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Place:
    """The manifests of a cluster, the folders of its Secrets, and the roles whose pods are evicted."""

    former: Manifests
    manifests: Manifests
    """Of the new release."""
    secrets: dict[str, Path]
    roles: Sequence[str] = ROLES
    ca_file: Path | None = None
    """The authority that simulators trust; None: the gateway speaks no TLS."""

    def start(self, kubelet: Kubelet) -> None:
        """Apply the manifests. PgBouncer's and the gateway's Services have their addresses only now."""
        if "pgbouncer" in self.roles:
            url = f"postgresql+psycopg://ludus:{PASSWORD}@{kubelet.address('pgbouncer', 'postgres')}/ludus"
            (self.secrets["ludus"] / "database-url").write_text(url)
        if self.ca_file is not None:
            gateway, _, _ = kubelet.address("gateway", "grpc").rpartition(":")
            certify(self.ca_file, gateway)
        kubelet.apply()


@pytest.fixture(params=["base", pytest.param("production", marks=[pytest.mark.s3, needs_s3])])
def place(request: pytest.FixtureRequest, folder: Path) -> Iterator[Place]:
    with ExitStack() as over:

        def run(server: Server) -> None:
            over.callback(server.crash)
            server.start()

        postgres, redis = Postgres(folder), Redis()
        run(postgres)
        run(redis)
        files = {name: secrets.token_urlsafe(32) for name in ("api-token", "gateway-token", "ticket-key")}
        files |= {"database-url": postgres.url, "broker-url": redis.url}
        checkout = former_release(folder / "former")
        if request.param == "base":
            former = render(checkout / OVERLAY, checkout)
            yield Place(former, render(ROOT / OVERLAY), {"ludus": secret(folder / "secret", files)})
            return
        program("pgbouncer")
        with psycopg.connect(postgres.url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute("CREATE DATABASE ludus")
        bucket = over.enter_context(serve_s3(folder / "s3")).bucket("ludus")
        files |= {"s3-access-key": ACCESS_KEY, "s3-secret-key": SECRET_KEY}
        folders = {
            "ludus": secret(folder / "secret", files),
            "pgbouncer": secret(folder / "pgbouncer", {"userlist.txt": f'"ludus" "{PASSWORD}"'}),
            "ludus-tls": secret(folder / "tls", {}),
        }
        former, new = (
            production(source, folder / f"kubernetes-{number}", bucket, postgres)
            for number, source in enumerate((checkout, ROOT))
        )
        yield Place(former, new, folders, (*ROLES, "pgbouncer"), folders["ludus-tls"] / "ca.crt")


def former_release(folder: Path) -> Path:
    """Return a checkout of the release that runs at first."""
    if FORMER is None:
        return ROOT
    with subprocess.Popen(["git", "-C", str(ROOT), "archive", FORMER], stdout=subprocess.PIPE) as archive:
        assert archive.stdout is not None
        with tarfile.open(fileobj=archive.stdout, mode="r|") as files:
            files.extractall(folder, filter="data")
    return folder


def secret(folder: Path, files: dict[str, str]) -> Path:
    """Write the files of a Secret; return their folder."""
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def certify(ca_file: Path, address: str) -> None:
    """Write the Secret of `kubectl create secret tls`: a certificate for the gateway's address and for HOST, by an
    authority of our own. Pods have addresses that no certificate can hold in advance.
    """
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=Ludus"
    names = f"-addext subjectAltName=DNS:{HOST},IP:{address} -keyout tls.key -out tls.crt"
    subprocess.run([*command.split(), *names.split()], cwd=ca_file.parent, check=True, capture_output=True)
    shutil.copy(ca_file.parent / "tls.crt", ca_file)


def production(checkout: Path, folder: Path, bucket: str, postgres: Postgres) -> Manifests:
    """Render a copy of a checkout's production overlay with a bucket, a database and a name filled in, and an authority
    of our own.
    """
    shutil.copytree(checkout / "deploy/kubernetes", folder)
    overlay = folder / "overlays/production"
    authority = f"LUDUS_GATEWAY__TLS_NAME={HOST}\n      - LUDUS_GATEWAY__TLS_CA=/run/secrets/ludus-tls/ca.crt"
    for name, capitals, filled in (
        ("kustomization.yaml", "s3://BUCKET/ludus?region=REGION", bucket),
        ("kustomization.yaml", "LUDUS_GATEWAY__TLS_NAME=LUDUS.EXAMPLE.COM", authority),
        ("pgbouncer.yaml", "host=DATABASE-HOST port=5432", f"host=127.0.0.1 port={postgres.port}"),
    ):
        text = (overlay / name).read_text()
        assert capitals in text
        (overlay / name).write_text(text.replace(capitals, filled))
    return render(overlay, checkout)


def test_evictions_at_random_and_a_new_release_lose_no_run_and_no_answer(
    folder: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = int(os.environ.get("LUDUS_TEST_SEED") or secrets.randbits(31))
    log.info("evictions", count=EVICTIONS, seed=seed)
    files = place.secrets["ludus"]
    monkeypatch.setenv("LUDUS_TOKEN", (files / "api-token").read_text())
    tokens = {"LUDUS_SIMULATOR_TOKEN": (files / "gateway-token").read_text()}
    with Kubelet(place.former, folder, place.secrets) as kubelet:
        server = f"http://{kubelet.address('api', 'http')}"
        place.start(kubelet)
        eventually(kubelet.ready, "all Deployments are ready", 300)
        with Client(server) as client:
            (files / "queue-token").write_text(client.tokens.create("keda", ["read"], project="*").token)
            runs = [client.runs.create(CONFIG).id for _ in range(RUNS)]
            poller = Poller(
                server, os.environ["LUDUS_TOKEN"], ["/v1/queue", *(f"/v1/runs/{run}" for run in runs)], runs[0]
            )
            witnesses = [Witness(server, run) for run in runs]
            gateway = kubelet.address("gateway", "grpc")
            games = [Simulators(gateway, run, 1, ca_file=place.ca_file, **tokens) for run in runs]
            try:
                going_on(client, runs)
                playing = [each.running() for each in games]
                evict_at_random(kubelet, place, client, runs, random.Random(seed))
                eventually(kubelet.ready, "the new release runs", 300)
                going_on(client, runs)
                assert [each.running() for each in games] == playing, "a game has ended"
                for run in runs:
                    client.runs.change(
                        run, behaviors={"CartPole": {"max_steps": client.runs.get(run).step + LAST_STEPS}}
                    )
                for run in runs:
                    ended = client.runs.wait(run, timeout=300)
                    assert (ended.state, ended.stop_reason) == ("SUCCEEDED", "completed"), ended.stop_detail
                time.sleep(1)  # allow: sleep, because the witness looks once a second
            finally:
                for each in (*witnesses, *games, poller):
                    each.stop()
                log.info("polled", answers=dict(poller.answers), failures=poller.failures[:20])
            assert set(poller.answers) == {200}, poller.failures
            assert poller.failures == []
            assert client.runs.get(runs[0]).name == poller.name, "an acknowledged write is lost"
            for witness in witnesses:
                witness.hold_to_account(client, folder)
            report_claims(client, runs)
    assert list(faults(kubelet.pods)) == []
    assert [pod.name for pod in kubelet.pods if pod.restarts] == [], "containers ended by themselves"
    assert kubelet.left() == []


def going_on(client: Client, runs: list[str]) -> None:
    """Wait until each run has come further than ever before."""
    goals = {run: max((each.step for each in client.runs.attempts(run)), default=0) + SUMMARY_STEPS for run in runs}

    def further() -> bool:
        found = [client.runs.get(run) for run in runs]
        for run in found:
            assert run.state not in {"FAILED", "CANCELLED"}, f"{run.state}: {run.stop_reason} {run.stop_detail}"
        return all(run.step >= goals[run.id] for run in found)

    eventually(further, f"steps {goals}", 300)


def evict_at_random(kubelet: Kubelet, place: Place, client: Client, runs: list[str], draw: random.Random) -> None:
    """Evict pods of some roles, and upgrade when half of them are evicted."""
    evicted: Counter[str] = Counter()
    began = time.monotonic()

    def next_one() -> RunningPod | None:
        pods = [pod for role in place.roles for pod in kubelet.of_role(role)]
        if sum(not pod.ready or (pod.ending and pod.role != "pgbouncer") for pod in pods) >= UNSETTLED:
            return None
        victim = draw.choice([pod for pod in pods if not pod.ending])
        return victim if kubelet.evict(victim) else None

    for number in range(1, EVICTIONS + 1):
        evicted[eventually(next_one, "a pod can be evicted", 300).role] += 1
        if number == (EVICTIONS + 1) // 2:
            kubelet.upgrade(place.manifests)
        if number % LOOK_AFTER == 0:
            going_on(client, runs)
            log.info("evicted", **evicted, seconds=round(time.monotonic() - began))
    log.info("evicted_all", **evicted, seconds=round(time.monotonic() - began))


def report_claims(client: Client, runs: list[str]) -> None:
    """Log how attempts ended, and for how long runs were without a worker."""
    ends: Counter[str | None] = Counter()
    waits = []
    for run in runs:
        attempts = sorted(client.runs.attempts(run), key=lambda each: each.number)
        ends.update(each.outcome for each in attempts)
        waits += [
            (after.started_at - before.ended_at).total_seconds()
            for before, after in pairwise(attempts)
            if before.ended_at is not None
        ]
    median, p90, longest = statistics.median(waits), sorted(waits)[len(waits) * 9 // 10], max(waits)
    log.info("claimed_again", ends=dict(ends), median=median, p90=p90, longest=longest)
