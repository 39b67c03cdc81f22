"""A simulated fleet on the real control plane: the time of every operation, processor time per role, the bottleneck.

    python -m benchmarks.fleet [--busy 1000] [--idle 1000] [--waiting 10000] [--connected 5000] [--points 10000]
        [--listeners 200] [--seconds 60] [--scale 1] [--slower 1] [--zone] [--no-pgbouncer]
        [--url postgresql+psycopg://...]

One api, one gateway, one controller, PostgreSQL with fsync, Redis, and PgBouncer where it is installed; slots (threads
of many worker hosts, `benchmarks.fleet.slots`), simulators and listeners (`benchmarks.fleet.clients`). All of it shares
this machine, so processor time is what extrapolates: that of the servers and that of the fleet itself are told apart,
and the bottleneck is the server that uses the largest share of the processor time that it can use. `--zone` kills a
third of the busy slots at the end, and measures how long it takes until idle slots have claimed all their runs.

Where the fleet itself needs more processors than the machine has, nothing but their lack is measured: slots that wait
for one keep their transactions open. `--slower 3` lets each slot, simulator and client do what it does at a third of
the pace (above 3 leases are longer, too): everything that depends on how many there are stays, and the servers need a
third of the processor time.
"""

import argparse
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, cycle, pairwise

import httpx2
import numpy as np

from benchmarks.fleet.parts import Part, Sample
from benchmarks.fleet.slots import KEYS, LISTENED, lease_seconds_of
from benchmarks.fleet.stack import Look, Stack, pgbouncer_is_installed, used
from server.kit.db.database import Database
from tests.factories import CONFIG, make_run
from tests.ports import free_port
from tests.waiting import eventually

SLOTS_OF_HOST = 120
SIMULATORS_OF_PROCESS = 2500
WAITING_RUNS = 100
STARTS = 10
"""Waiting runs that start while the fleet is measured."""
ZONES = 3
START_SECONDS = 0.06
"""Between the starts of two slots: a fleet that starts at once would wait for the one lock of claims."""
LOOK_SECONDS = 0.2
"""Between two looks at PostgreSQL's activity."""
LIST_SECONDS = 0.2
"""Between two requests of the client that lists."""
HOLD_SECONDS = 30.0
"""For which the gateway holds the question of a simulator whose run waits, as shipped."""
LISTS = ("/v1/runs?page_size=100", "/v1/runs?page_size=100", "/v1/workers?page_size=100", "/v1/queue")
LATE = "late"
"""Label that waiting runs demand."""
ZONE_SECONDS, ZONE_BAR = 180.0, 90.0
START_LIMIT = 1800.0


class Lister(threading.Thread):
    """A client that lists runs, workers and the queue in turn."""

    def __init__(self, api: str, period: float) -> None:
        super().__init__()
        self._api = api
        self._period = period
        self._over = threading.Event()
        self.samples: list[Sample] = []

    def run(self) -> None:
        """List until `close`."""
        with httpx2.Client(base_url=f"http://{self._api}", timeout=60) as http:
            for path in cycle(LISTS):
                began = time.monotonic()
                http.get(path).raise_for_status()
                taken = time.monotonic() - began
                self.samples.append((f"GET {path.partition('?')[0]}", began, taken, 0.0))
                if self._over.wait(self._period):
                    return

    def close(self) -> None:
        """End."""
        self._over.set()
        self.join()


class Fleet:
    """The stack, and all processes of the fleet."""

    def __init__(self, options: argparse.Namespace, stack: ExitStack) -> None:
        self._options = options
        self._stack = stack
        self.parts: list[Part] = []
        slots = options.busy + options.idle + STARTS
        self.servers = Stack(
            stack,
            options.url,
            2 * slots + 100,
            pgbouncer=options.pgbouncer,
            hold_seconds=HOLD_SECONDS * options.slower,
            lease_seconds=lease_seconds_of(options.slower),
        )
        self._collector = f"127.0.0.1:{free_port()}"
        self.lister = Lister(self.servers.api, LIST_SECONDS * options.slower)

    def start(self) -> None:
        """Start the whole fleet; return when everything is at its place."""
        options = self._options
        database = Database(self.servers.url)
        listened = [make_run(database, name=f"busy-{n}").id for n in range(options.busy)][:LISTENED]
        demanding = {**CONFIG, "resources": {"labels": [LATE]}}
        for number in range(WAITING_RUNS):
            make_run(database, name=f"waiting-{number}", config=demanding)
        database.close()
        print("the runs wait; processes start", flush=True)
        self._part("collector", "clients", "collector", self._collector)
        zones = -(-options.busy // (ZONES * SLOTS_OF_HOST)) * ZONES
        self._hosts("busy slots", [f"zone{n % ZONES}-{n}" for n in range(zones)], options.busy, "--claims")
        idle = -(-options.idle // SLOTS_OF_HOST)
        self._hosts("idle slots", [f"idle-{n}" for n in range(idle)], options.idle)
        every = options.seconds * 0.8 / STARTS
        self._hosts("late slots", ["late"], STARTS, "--claims", "--labels", LATE, start_seconds=every)
        self._clients("connected simulators", "simulators", "busy", options.busy, options.connected)
        self._clients("waiting simulators", "simulators", "waiting", WAITING_RUNS, options.waiting)
        self._clients("listeners", "listeners", ",".join(listened), len(listened), options.listeners)
        self._begin("collector", "open", 1)
        self._begin("busy slots", "busy", options.busy)
        self._begin("idle slots", "known", options.idle)
        self._begin("connected simulators", "done", options.connected)
        self._begin("waiting simulators", "open", options.waiting)
        self._begin("listeners", "open", options.listeners)
        self.lister.start()
        self._stack.callback(self.lister.close)

    def start_waiting_runs(self) -> None:
        """Start slots, one after the other, that take waiting runs."""
        for part in self.of("late slots"):
            part.begin()

    def of(self, role: str) -> list[Part]:
        """Return the processes of a role of the fleet."""
        return [part for part in self.parts if part.role == role]

    def report(self) -> Mapping[str, float]:
        """Have all processes that began hand over their samples; return the moments that they have noted."""
        return {name: at for part in self.parts if part.begun for name, at in part.report()["moments"].items()}

    def kill_zone(self) -> float:
        """Kill the slots of a zone; return the seconds until other slots have claimed all their runs.

        Raises AssertionError after ZONE_SECONDS.
        """
        held = "SELECT run_id FROM attempts WHERE ended_at IS NULL AND worker_id LIKE 'zone0-%'"
        runs = [str(row[0]) for row in self.servers.query(held)]
        zone = [part for part in self.of("busy slots") if part.name.startswith("zone0-")]
        began = time.monotonic()
        for part in zone:
            part.kill()
            self.parts.remove(part)
        live = "SELECT count(*) FROM attempts WHERE ended_at IS NULL"
        again = f"{live} AND run_id = ANY(%s) AND worker_id NOT LIKE 'zone0-%%'"

        def claimed() -> bool:
            return self.servers.query(again, runs)[0][0] == len(runs)

        eventually(claimed, f"all {len(runs)} runs of the zone are claimed again", ZONE_SECONDS)
        return time.monotonic() - began

    def _hosts(self, role: str, names: Sequence[str], slots: int, *extra: str, start_seconds: float = 0.0) -> None:
        """Start worker hosts that have so many slots together."""
        options = self._options
        common = ["--url", self.servers.pooled, "--broker", self.servers.broker, "--collector", self._collector]
        common += ["--summary-seconds", str(options.slower * options.busy * len(KEYS) / options.points), *extra]
        common += ["--slower", str(options.slower)]
        common += ["--start-seconds", str(start_seconds or START_SECONDS * len(names))]
        common += ["--connected", str(options.connected // options.busy)]
        common += ["--waiting", str(options.waiting // WAITING_RUNS)]
        for name, (first, last) in zip(names, _cut(slots, len(names)), strict=True):
            self._part(role, "slots", "--host", name, "--slots", last - first, *common, name=name)

    def _clients(self, role: str, kind: str, of_runs: str, runs: int, count: int) -> None:
        address = self.servers.api if kind == "listeners" else self.servers.gateway
        for first, last in _cut(count, -(-count // SIMULATORS_OF_PROCESS)):
            numbers = ["--runs", runs, "--first", first, "--last", last, "--slower", self._options.slower]
            self._part(role, "clients", kind, address, "--kind", of_runs, *numbers)

    def _part(self, role: str, module: str, *arguments: object, name: str = "") -> None:
        self.parts.append(self._stack.enter_context(Part(role, module, *arguments, name=name)))

    def _begin(self, role: str, what: str, count: int) -> None:
        """Let the processes of a role begin, and wait until there are so many."""
        began = time.monotonic()
        for part in self.of(role):
            part.begin()
        eventually(
            lambda: sum(int(part.report()[what]) for part in self.of(role)) >= count, f"{count} {role}", START_LIMIT
        )
        print(f"{count} {role}: {time.monotonic() - began:.0f} s", flush=True)


def measure(options: argparse.Namespace, fleet: Fleet) -> None:
    """Let the fleet work, and print all figures."""
    servers = fleet.servers
    fleet.report()
    print("\nwhile the fleet starts:")
    print_operations(fleet, 0.0, time.monotonic())
    print("\nthe fleet works:")
    servers.forget_statements()
    counts, rounds = servers.counts(), servers.rounds()
    fleet.start_waiting_runs()
    meter = ProcessorMeter(fleet)
    began = time.monotonic()
    looks: list[Look] = []
    while (left := began + options.seconds - time.monotonic()) > 0:
        looks.append(servers.look())
        time.sleep(min(LOOK_SECONDS, left))
    seconds = time.monotonic() - began
    spent, of_fleet = meter.spent()
    grown = {name: after - counts[name] for name, after in servers.counts().items()}
    rounds = {bound: after - rounds.get(bound, 0.0) for bound, after in servers.rounds().items()}
    dearest = servers.dearest_statements()
    moments = fleet.report()
    print_operations(fleet, began, began + seconds, join_delays(moments), rounds)
    print(f"\nper second: {', '.join(f'{value / seconds:,.0f} {name}' for name, value in grown.items())}; ", end="")
    print(f"at most {max(look.connections for look in looks)} connections of clients with PostgreSQL")
    print_processor_time(spent, of_fleet, seconds)
    if dearest:
        print("\nthe statements that took PostgreSQL the longest: seconds, calls")
        for took, calls, text in dearest:
            print(f"{took:>8.1f}{calls:>9,}  {text[:120]}")
    cores = os.cpu_count() or 1
    shares = {
        f"{role}, of {cores} cores" if role == "postgresql" else f"{role}, of one core": value
        / seconds
        / (cores if role == "postgresql" else 1)
        for role, value in spent.items()
    }
    shares["the lock of all claims, of the time"] = sum(look.claiming for look in looks) / len(looks)
    shares[f"transactions, of {servers.limit} at once"] = (
        sum(look.working for look in looks) / len(looks) / servers.limit
    )
    print("\nutilization: " + "; ".join(f"{name} {share:.1%}" for name, share in shares.items()))
    first, share = max(shares.items(), key=lambda one: one[1])
    full = 1 / share / options.slower
    print(f"first bottleneck: {first}: {share:.1%}, so it is full at {full:.1f} times this fleet at its own pace")
    if options.zone:
        meter = ProcessorMeter(fleet)
        taken = fleet.kill_zone()
        ended = time.monotonic()
        fleet.report()
        print(f"\na zone dies: all its runs are claimed again after {taken:.1f} s (bar {ZONE_BAR:.0f} s)")
        print_operations(fleet, ended - taken, ended)
        print_processor_time(*meter.spent(), taken)


class ProcessorMeter:
    """What servers and fleet use of the processors from now on."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._servers = fleet.servers.processor_seconds()
        self._parts = {part: used(part.process) for part in fleet.parts}
        self._myself = time.process_time()

    def spent(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return the seconds until now, by server, and by role of the fleet as far as it is alive."""
        servers = {role: now - self._servers[role] for role, now in self._fleet.servers.processor_seconds().items()}
        roles: dict[str, float] = {}
        for part in self._fleet.parts:
            roles[part.role] = roles.get(part.role, 0.0) + used(part.process) - self._parts[part]
        return servers, {**roles, "the benchmark, its lister": time.process_time() - self._myself}


def print_processor_time(servers: Mapping[str, float], of_fleet: Mapping[str, float], seconds: float) -> None:
    """Print what `ProcessorMeter.spent` returned after so many seconds."""
    print(f"\n{'processor time':<28}{'s':>8}{'of a core':>11}")
    rows = [
        *sorted(servers.items(), key=lambda one: -one[1]),
        *((f"({role})", value) for role, value in of_fleet.items()),
    ]
    for role, value in rows:
        print(f"{role:<28}{value:>8.1f}{value / seconds:>11.1%}")


def print_operations(
    fleet: Fleet, began: float, ended: float, delays: Sequence[float] = (), rounds: Mapping[float, float] | None = None
) -> None:
    """Print all operations that began in this time: count, time, the fleet's own processor time, and failures."""
    taken: dict[str, list[tuple[float, float]]] = {}
    for operation, at, seconds, processor in [*chain(*(part.samples for part in fleet.parts)), *fleet.lister.samples]:
        if began <= at <= ended:
            taken.setdefault(operation, []).append((seconds, processor))
    if delays:
        taken["a run listens until a waiting simulator joined"] = [(delay, 0.0) for delay in delays]
    print(f"{'operation':<48}{'count':>8}{'per s':>9}{'p50 ms':>9}{'p99 ms':>9}{'own processor ms':>18}")
    for operation, values in sorted(taken.items()):
        p50, p99 = 1e3 * np.percentile([seconds for seconds, _ in values], [50, 99])
        own = 1e3 * sum(processor for _, processor in values) / len(values)
        rate = f"{len(values) / (ended - began):.1f}" if began else ""
        print(f"{operation:<48}{len(values):>8,}{rate:>9}{p50:>9.1f}{p99:>9.1f}{f'{own:.2f}' if own else '':>18}")
    if rounds and (total := max(rounds.values())):
        p50, p99 = (
            1e3 * min(bound for bound, count in rounds.items() if count >= part * total) for part in (0.5, 0.99)
        )
        per_second = total / (ended - began)
        print(f"{'round of the controller, at most':<48}{total:>8,.0f}{per_second:>9.1f}{p50:>9.1f}{p99:>9.1f}")
    for operation in sorted({name for part in fleet.parts for name in part.failures}):
        print(f"failed: {operation}: {sum(part.failures.pop(operation, 0) for part in fleet.parts)}")


def join_delays(moments: Mapping[str, float]) -> list[float]:
    """Return the seconds from the moment at which a waiting run listens to that at which each simulator has joined."""
    runs = {name: name.rpartition("-")[0] for name in moments if name.startswith("waiting-") and name.count("-") == 2}
    return [moments[name] - moments[run] for name, run in runs.items() if run in moments]


def _cut(count: int, parts: int) -> Iterable[tuple[int, int]]:
    """Cut a range into nearly equal ones."""
    return pairwise(count * part // max(1, parts) for part in range(max(1, parts) + 1))


def main() -> None:
    """Start, measure, print, and leave nothing behind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"busy": 1000, "idle": 1000, "waiting": 10_000, "connected": 5000, "points": 10_000, "listeners": 200}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--scale", type=float, default=1.0, help="Multiplies all of these but the listeners.")
    parser.add_argument(
        "--slower", type=float, default=1.0, help="Divides the pace of each slot, simulator and client."
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--zone", action="store_true", help="Kill a third of the busy slots at the end.")
    parser.add_argument("--pgbouncer", action=argparse.BooleanOptionalAction, default=pgbouncer_is_installed())
    parser.add_argument(
        "--url", help="An empty database on this machine; a new server in a temporary folder by default."
    )
    options = parser.parse_args()
    for name in sizes:
        if name != "listeners":
            setattr(options, name, int(options.scale * getattr(options, name)))
    if options.busy < ZONES or options.points < 1:
        parser.error(f"--busy must be {ZONES} at least (one slot of each zone), and --points 1 at least")
    needed = max(options.waiting + options.connected, 2 * (options.busy + options.idle)) + 1000  # of gateway, PgBouncer
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if needed > hard:
        parser.error(f"so many connections need {needed} open files of one process; the limit is {hard} (ulimit -n)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the servers and processes end with the block below
    with ExitStack() as stack:
        fleet = Fleet(options, stack)
        fleet.start()
        measure(options, fleet)


if __name__ == "__main__":
    main()
