"""The roles of docker-compose.yml on hosts of their own, with PostgreSQL, Redis and S3, TLS, tokens and firewalls.

Each role is started with the command and the environment of the file. All that is supplied in place of a container
engine, a DNS server and the images of others is in this module: `ADDRESSES` (names), `PLACES` (which host has which
service), `Deployment._contained` (volumes) and `Deployment._serve` (PostgreSQL's image makes a user and a database).
"""

import contextlib
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from ludus.client import Client
from ludus.protocol.tls import ClientTls
from server.kit.processes import MARK, sweep
from tests.chaos.servers import program
from tests.deployment.composition import EXAMPLE, ROOT, Service, fill, read_services
from tests.deployment.hosts import Host, Process, Switch, cable
from tests.e2e.stack import environment
from tests.s3 import ACCESS_KEY, SECRET_KEY, S3Server, serve_s3
from tests.waiting import eventually

Value = TypeVar("Value")

ON_THE_WORKER = ("--collect", "there")
"""Games on other machines are edge collectors by default; these tests are about streams that reach workers."""
ADDRESSES = {
    "postgres": "10.77.0.5",
    "redis": "10.77.0.6",
    "s3": "10.77.0.7",
    "control": "10.77.0.10",
    "worker-1": "10.77.0.21",
    "worker-2": "10.77.0.22",
    "games": "10.77.0.40",
    "office": "10.77.0.41",
    "router": "10.77.0.50",
    "operator": "10.77.0.60",
}
"""What a DNS server and a container engine's network would say."""
HOSTS = {
    "data": ("postgres", "redis", "s3"),
    **{name: (name,) for name in ADDRESSES if name not in {"postgres", "redis", "s3"}},
}
"""The addresses of each host. `office` may go out to the gateway alone; `home`, behind the router, has none here."""
HOME, HOME_ROUTER = "192.168.77.2", "192.168.77.1"
PLACES = {
    "postgres": ("data",),
    "redis": ("data",),
    "migrate": ("control",),
    "api": ("control",),
    "gateway": ("control",),
    "controller": ("control",),
    "worker": ("worker-1", "worker-2"),
}
"""Where each service runs. A worker's host has a .env of its own, as docs/operations.md says."""
TABLE = {
    "postgres": ("postgres",),
    "redis": ("redis",),
    "s3": ("s3",),
    "api": ("control",),
    "gateway": ("control",),
    "controller": ("control",),
    "worker": ("worker-1", "worker-2"),
    "migrate": ("control",),
    "worker-gpu": (),
    "clients": ("operator",),
    "simulators": ("games", "office", "router"),
}
"""Which names the words of the table in docs/operations.md mean here."""
WORKERS = PLACES["worker"]
S3_PORT = 9000
START_SECONDS = 90.0


def table_of_ports() -> list[tuple[list[str], list[str], int, int]]:
    """Return the rows of the table in docs/operations.md: from, to, first and last port."""
    page = (ROOT / "docs" / "operations.md").read_text()
    rows = re.findall(r"^\| ([\w, -]+) \| ([\w, -]+) \| (\d+)(?:-(\d+))? \|", page, re.MULTILINE)
    return [
        (sources.split(", "), targets.split(", "), int(first), int(last or first))
        for sources, targets, first, last in rows
    ]


class Deployment:
    """Everything, started and ready."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mark = secrets.token_hex(8)
        self._over = contextlib.ExitStack()
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave nothing behind."""
        self._over.close()
        sweep(self._mark)

    def _build(self) -> None:
        self.secrets = {
            "POSTGRES_PASSWORD": secrets.token_hex(8),
            "LUDUS_API__TOKEN": secrets.token_hex(16),
            "LUDUS_GATEWAY__TOKEN": secrets.token_hex(16),
            "LUDUS_GATEWAY__TICKET_KEY": secrets.token_hex(32),
        }
        self.ca = self._certify()
        self._connect()
        self._guard()
        self.roles: dict[tuple[str, str], Process] = {}
        self._environments: dict[tuple[str, str], Service] = {}
        s3 = self._store()
        self.bucket = self.hosts["data"].do(s3.bucket, "ludus")
        self.s3 = s3
        services = read_services(self._dotenv("control"))
        for name, (place, *_) in PLACES.items():
            if place not in WORKERS:
                self._start(name, place, services)
        for host in WORKERS:
            self._start("worker", host, read_services(self._dotenv(host)))
        for name, host in self.roles:
            eventually(
                lambda name=name, host=host: self.healthy(name, host), f"{name} on {host} is healthy", START_SECONDS
            )  # type: ignore[misc]

    # the network ----------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Make the hosts and their network."""
        etc = {"hosts": self.folder / "hosts", "resolv.conf": self.folder / "resolv.conf"}
        etc["hosts"].write_text("127.0.0.1 localhost\n" + "".join(f"{ip} {name}\n" for name, ip in ADDRESSES.items()))
        etc["resolv.conf"].write_text("nameserver 127.0.0.1\n")  # there is none: it says so at once
        switch = Switch()
        self._over.callback(switch.close)
        self.switch = switch
        self.hosts: dict[str, Host] = {}
        for name, addresses in HOSTS.items():
            self._host(name, etc)
            switch.connect(self.hosts[name], *(ADDRESSES[each] for each in addresses))
        self._host("home", etc)
        router, home = self.hosts["router"], self.hosts["home"]
        cable(router, "inside", home, "eth0", HOME)
        router.run("ip", "address", "add", f"{HOME_ROUTER}/24", "dev", "inside")
        router.run("ip", "link", "set", "inside", "up")
        home.run("ip", "route", "add", "default", "via", HOME_ROUTER)
        router.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")

    def _host(self, name: str, etc: Mapping[str, Path]) -> None:
        self.hosts[name] = Host(name, etc)
        self._over.callback(self.hosts[name].close)

    def _guard(self) -> None:
        """Close everything but what the table of docs/operations.md opens."""
        for host, names in HOSTS.items():
            opened = [
                f"ip saddr {ADDRESSES[source]} ip daddr {ADDRESSES[target]} tcp dport {first}-{last} accept"
                for sources, targets, first, last in table_of_ports()
                for source in _names(sources)
                for target in _names(targets)
                if target in names
            ]
            self.hosts[host].filter(
                _chain("input", ["ct state established,related accept", "iifname lo accept", *opened])
            )
        gateway = f"ip daddr {ADDRESSES['control']} accept"
        self.hosts["office"].filter(_chain("output", ["oifname lo accept", gateway]))
        masquerade = 'chain leave {\ntype nat hook postrouting priority 100;\noifname "eth0" masquerade\n}'
        self.hosts["router"].filter(f"table ip nat {{\n{masquerade}\n}}\n")

    # what operators prepare -----------------------------------------------------------------------------------------

    def _certify(self) -> Path:
        """Make an authority, and a certificate for the names of the control host and of the workers."""
        tls = self.folder / "tls"
        tls.mkdir()
        names = ",".join(f"DNS:{name}" for name in ("control", *WORKERS, "localhost"))
        commands = f"""
            key="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
            openssl req -x509 $key -days 2 -keyout ca.key -out ca.pem -subj /CN=Ludus-CA
            openssl req $key -keyout server.key -out server.csr -subj /CN=server
            echo subjectAltName={names} > names
            openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out server.pem -extfile names
        """
        subprocess.run(["sh", "-ec", commands], cwd=tls, check=True, capture_output=True)
        return tls / "ca.pem"

    def _dotenv(self, host: str) -> Path:
        """Write the .env of a host: the example, filled in."""
        served = {
            f"LUDUS_{part}__TLS_{name}": f"/var/lib/ludus/tls/server.{suffix}"
            for part in ("API", "GATEWAY")
            for name, suffix in (("CERTIFICATE", "pem"), ("KEY", "key"))
        }
        elsewhere = {
            "LUDUS_DATABASE__URL": f"postgresql+psycopg://ludus:{self.secrets['POSTGRES_PASSWORD']}@postgres:5432/ludus",
            "LUDUS_QUEUE__BROKER_URL": "redis://redis:6379/0",
        }
        text = fill(
            EXAMPLE.read_text(),
            **self.secrets,
            **served,
            **(elsewhere if host in WORKERS else {}),
            LUDUS_GATEWAY__TLS_CA="/var/lib/ludus/tls/ca.pem",
            LUDUS_WORKER__ADVERTISE_HOST=host,
            LUDUS_STORAGE__URL=self.bucket,
            LUDUS_STORAGE__ACCESS_KEY=ACCESS_KEY,
            LUDUS_STORAGE__SECRET_KEY=SECRET_KEY,
            LUDUS_WORKER__LEASE_SECONDS="4",
            LUDUS_WORKER__HEARTBEAT_SECONDS="1",
        )
        path = self.folder / f"{host}.env"
        path.write_text(f"{text}\nLUDUS_PUBLISH_API=8080\nLUDUS_TLS_FOLDER={self.folder / 'tls'}\n")
        return path

    # processes ------------------------------------------------------------------------------------------------------

    def _store(self) -> S3Server:
        """Start S3."""
        data = self.hosts["data"]
        serving = serve_s3(self.folder / "s3", listen=(ADDRESSES["s3"], S3_PORT))
        self._over.callback(lambda: data.do(serving.__exit__, None, None, None))
        return data.do(serving.__enter__)

    def _start(self, name: str, host: str, services: Mapping[str, Service]) -> None:
        """Start a service, with what it needs before it."""
        if (name, host) in self.roles:
            return
        service = services[name]
        for needed, condition in service.needs.items():
            (place,) = PLACES[needed]
            self._start(needed, place, services)
            if condition == "service_completed_successfully":
                assert self.roles[needed, place].wait(START_SECONDS) == 0, self.log(needed, place)[-4000:]
            else:
                assert condition == "service_healthy", condition
                eventually(
                    lambda needed=needed, place=place: self.healthy(needed, place),
                    f"{needed} is healthy",
                    START_SECONDS,
                )  # type: ignore[misc]
        self._environments[name, host] = service
        command = self._serve(service) if name in {"postgres", "redis"} else self._contained(service, host)
        log = self.folder / f"{name}-{host}.log"
        self.roles[name, host] = self.hosts[host].start(command, self._environment(service), log)

    def _environment(self, service: Service) -> dict[str, str]:
        """Return a container's environment; the mark lets all of its processes be found at the end."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {"PATH": path, "HOME": str(self.folder), MARK: self._mark, **service.environment}

    def _contained(self, service: Service, host: str) -> list[str]:
        """Return the command of a service, with a container's volumes: the same paths, in a file system of its own."""
        mounts = ["mount -t tmpfs tmpfs /var/lib"]
        for target, source in service.volumes.items():
            assert target.startswith("/var/lib/"), target
            folder = Path(source) if source.startswith("/") else self.folder / "volumes" / host / source
            folder.mkdir(parents=True, exist_ok=True)
            mounts += [f"mkdir -p {target}", f"mount --bind {folder} {target}"]
        return ["unshare", "--mount", "sh", "-ec", "\n".join([*mounts, 'exec "$@"']), "sh", *service.command]

    def _serve(self, service: Service) -> list[str]:
        """Return how PostgreSQL or Redis is started as their images do: for all addresses, in the volume's folder."""
        folder = self.folder / "volumes" / service.name
        folder.mkdir(parents=True)
        if service.name == "redis":
            return [*service.command, "--bind", "0.0.0.0", "--protected-mode", "no", "--dir", str(folder)]
        user, database, password = (service.environment[f"POSTGRES_{name}"] for name in ("USER", "DB", "PASSWORD"))
        binaries, options = (
            Path(program("initdb")).resolve().parent,
            "-c listen_addresses=* -c unix_socket_directories= -c fsync=off",
        )
        cluster = "--auth=scram-sha-256 --locale=C.UTF-8 --no-sync"
        script = f"""
            cd {folder.parent}
            echo {password} > password
            chown postgres {folder} password
            as_postgres="setpriv --reuid=postgres --regid=postgres --clear-groups"
            $as_postgres {binaries}/initdb -D {folder} -U {user} --pwfile=password {cluster}
            echo "host all all all scram-sha-256" >> {folder}/pg_hba.conf
            echo "CREATE DATABASE {database}" | $as_postgres {binaries}/postgres --single -D {folder} {options} postgres
            # A change of the user makes the kernel forget that it shall end this process with its host.
            exec $as_postgres --pdeathsig KILL {binaries}/postgres -D {folder} {options}
        """
        return ["sh", "-ec", script]

    def healthy(self, name: str, host: str) -> bool:
        """Run a service's health check, in its container's environment. One that is to run must not have ended."""
        service, process = self._environments[name, host], self.roles[name, host]
        if not service.health:
            return True
        assert process.poll() is None, f"{name} on {host} ended: {self.log(name, host)[-4000:]}"
        checked = self._environment(service)
        # The images install docker/health as ludus-health.
        command = [str(ROOT / "docker/health") if word == "ludus-health" else word for word in service.health]
        check = ["nsenter", f"--mount=/proc/{process.pid}/ns/mnt", "--", *command]
        done = self.hosts[host].do(subprocess.run, check, env=checked, capture_output=True, check=False, timeout=30)
        return done.returncode == 0

    def log(self, name: str, host: str) -> str:
        """Return a service's log."""
        return (self.folder / f"{name}-{host}.log").read_text(errors="replace")

    # users ----------------------------------------------------------------------------------------------------------

    def ask(self, question: Callable[[Client], Value]) -> Value:
        """Ask the API something, from the operator's host."""

        def asked() -> Value:
            token = self.secrets["LUDUS_API__TOKEN"]
            with Client("https://control:8080", token, tls=ClientTls(self.ca)) as client:
                return question(client)

        return self.hosts["operator"].do(asked)

    def simulate(self, host: str, run: str, *options: str) -> Process:
        """Start a native game on a host."""
        game = ["simulate", "gymnasium:CartPole-v1", "--run", run, "--count", "1", "--envs", "4", "--label", host]
        return self._ludus(host, *game, *ON_THE_WORKER, *options)

    def unity(self, host: str, run: str, build: Path) -> Process:
        """Start Unity games on a host."""
        logs = self.folder / "players"
        game = ["unity", run, "--env", str(build), "--no-graphics", "--logs", str(logs)]
        return self._ludus(host, *game, *ON_THE_WORKER)

    def _ludus(self, host: str, *arguments: str) -> Process:
        command = [sys.executable, "-m", "ludus.cli", *arguments, "--server", "control:7070", "--ca-file", str(self.ca)]
        token = {"LUDUS_SIMULATOR_TOKEN": self.secrets["LUDUS_GATEWAY__TOKEN"], MARK: self._mark}
        return self.hosts[host].start(
            command, environment(**token), self.folder / f"{arguments[0]}-{host}.log", cwd=ROOT
        )


def _names(words: list[str]) -> list[str]:
    return [name for word in words for name in TABLE[word]]


def _chain(hook: str, rules: list[str]) -> str:
    lines = "\n".join([f"type filter hook {hook} priority 0; policy drop;", *rules])
    return f"table inet guard {{\nchain {hook} {{\n{lines}\n}}\n}}\n"
