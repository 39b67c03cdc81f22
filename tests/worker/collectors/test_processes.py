"""Collector processes of a pool: start, ports, end, and what they need."""

import os
import shutil
import signal
import socket
import time
from pathlib import Path

import psutil
import pytest

from ludus.collector.messages import (
    Kind,
    SimulatorLeft,
)
from ludus.collector.settings import CollectorSettings
from tests.ludus.collector.stack import learner, player
from tests.ludus.protocol.test_tls import CERTIFICATE, PRIVATE
from tests.ports import free_port
from tests.waiting import eventually
from tests.worker.collectors.playing import pids_of
from worker.collectors.collector_process import WarmCollector
from worker.collectors.events import CollectorDied, CollectorListening
from worker.collectors.pool import CollectorPool, CollectorStartError

pytestmark = pytest.mark.usefixtures("started_collectors")


def test_a_taken_port_is_a_clear_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        pool = CollectorPool(CollectorSettings("run", 1, 7, port_range=(port, port)))

        with pytest.raises(CollectorStartError, match=f"collector 0 did not start: .*no free port.*{port}"):
            pool.start()


@pytest.mark.long
def test_a_collector_that_cannot_be_started_again_says_so_once(tmp_path: Path) -> None:
    certificate = tmp_path / "server.pem"
    shutil.copy(CERTIFICATE, certificate)
    with learner(tls_certificate=str(certificate), tls_key=str(PRIVATE)) as trainer:
        certificate.unlink()
        os.kill(pids_of(trainer.pool)[0], signal.SIGKILL)

        reason = trainer.wait_for(CollectorDied, lambda notice: notice.exit_code == 1).reason

        assert reason.startswith(f"exit code 1: ValueError: {certificate} cannot be read (No such file or directory)")
        child = trainer.pool._children[0]
        eventually(lambda: child.generation >= 3)
        assert [each.exit_code for each in trainer.heard(CollectorDied)] == [-signal.SIGKILL, 1]
        shutil.copy(CERTIFICATE, certificate)
        trainer.wait_for(CollectorListening)


def test_a_collector_that_makes_a_mistake_tells_its_simulators_so_before_it_ends() -> None:
    with learner() as trainer:
        simulator = player(trainer.endpoints[0].address)
        with trainer.pool._lock:
            trainer.pool._children.send(trainer.pool._children[0], Kind.MESSAGE, b"no message")

        close = simulator.closed()

        assert (close.code, close.rejoin) == ("internal_error", True)
        assert close.reason == "the collector made a mistake and is started again; its log has the details"
        left = trainer.wait_for(SimulatorLeft)
        assert (left.session_id, left.code, left.reason) == (simulator.session_id, close.code, close.reason)
        assert trainer.wait_for(CollectorDied).exit_code == 1
        trainer.wait_for(CollectorListening)


def test_collectors_take_the_ports_of_their_range() -> None:
    first = free_port(2)
    pool = CollectorPool(CollectorSettings("run", 1, 7, count=2, port_range=(first, first + 1)))

    endpoints = pool.start()
    pool.close("run_finished", "the test is over", rejoin=False)

    assert len({endpoint.port for endpoint in endpoints}) == 2
    assert all(first <= endpoint.port <= first + 1 for endpoint in endpoints)


def started(pool: CollectorPool) -> tuple[float, list[int]]:
    """Start and close a pool; return how long it took until its collector listened, and its processes."""
    begin = time.monotonic()
    (endpoint,) = pool.start()
    elapsed = time.monotonic() - begin
    assert endpoint.port
    pids = pids_of(pool)
    pool.close("run_finished", "the test is over", rejoin=False)
    return elapsed, pids


def test_a_warm_process_is_adopted_and_serves_much_sooner_than_a_cold_one() -> None:
    warm = WarmCollector.spawn()
    busy = psutil.Process(warm.process.pid)
    used = 0.0
    while (now := sum(busy.cpu_times()[:2])) > used or not now:
        used = now
        time.sleep(0.3)  # allow: sleep, because a process that imports uses up time, and one that waits does not

    soon, pids = started(CollectorPool(CollectorSettings("run", 1, 7), [warm]))
    late, _ = started(CollectorPool(CollectorSettings("run", 1, 7)))

    assert pids == [warm.process.pid]
    assert soon < late / 2


def test_closing_tells_every_simulator_why_and_ends_the_processes() -> None:
    pool = CollectorPool(CollectorSettings("run", 1, 7, count=2))
    endpoints = pool.start()
    simulators = [player(endpoint.address) for endpoint in endpoints]
    pids = pids_of(pool)

    pool.close("run_moved", "another worker goes on with it", rejoin=True)
    pool.close("run_finished", "twice is harmless", rejoin=False)

    for simulator in simulators:
        close = simulator.closed()
        assert (close.code, close.reason, close.rejoin) == ("run_moved", "another worker goes on with it", True)
        simulator.leave()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    left = [notice for notice in pool.poll(0) if isinstance(notice, SimulatorLeft)]
    assert sorted(notice.code for notice in left) == ["run_moved", "run_moved"]


def test_a_hundred_sessions_need_no_thread_each_and_little_memory() -> None:
    with learner(size=10_000) as trainer:
        warm_up = player(trainer.endpoints[0].address)
        warm_up.play([0], 3)
        process = psutil.Process(pids_of(trainer.pool)[0])
        threads, memory = process.num_threads(), process.memory_info().rss

        crowd = [player(trainer.endpoints[0].address) for _ in range(100)]
        for simulator in crowd:
            simulator.play([0, 1], 2)

        assert process.num_threads() <= threads + 8  # grpc's own pool may grow a little
        assert (process.memory_info().rss - memory) / len(crowd) < 1 << 20
        for simulator in [warm_up, *crowd]:
            simulator.leave()
