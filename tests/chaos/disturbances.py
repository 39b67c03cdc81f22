"""What can happen to the parts of a deployment: each leaves the run going on, or going on again."""

import contextlib
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psutil

from ludus.client import ApiError
from ludus.schemas import Attempt
from tests.chaos.cluster import LEASE_SECONDS, WORKERS, Cluster, Simulators
from tests.waiting import eventually

FROZEN_SECONDS = LEASE_SECONDS + 1


@dataclass(frozen=True)
class Scene:
    """A cluster that trains a run."""

    cluster: Cluster
    run: str
    simulators: Simulators

    def attempts(self) -> list[Attempt]:
        """Return the run's attempts, as soon as the API answers."""

        def look() -> list[Attempt] | None:
            with self.cluster.client() as client, contextlib.suppress(ApiError):
                return client.runs.attempts(self.run)
            return None

        return eventually(look, "the API answers", 60)


Disturbance = Callable[[Scene], None]


def kill_a_simulator(scene: Scene) -> None:
    """A game crashes."""
    scene.simulators.kill_one()


def freeze_a_simulator(scene: Scene) -> None:
    """A game hangs; the others play on meanwhile."""
    scene.simulators.freeze_one()
    going_on(scene)
    scene.simulators.unfreeze()


def kill_the_collector(scene: Scene) -> None:
    """Sessions end, the trainer starts another collector."""
    scene.cluster.collector(scene.run).kill()


def freeze_the_collector(scene: Scene) -> None:
    """The trainer notices that it says nothing any more, and replaces it."""
    victim = scene.cluster.collector(scene.run)
    victim.suspend()
    eventually(lambda: not victim.is_running() or victim.status() == psutil.STATUS_ZOMBIE, "it is replaced", 60)


def kill_the_trainer(scene: Scene) -> None:
    """The supervisor hands the run back, and takes it again."""
    scene.cluster.trainer(scene.run).kill()
    next_attempt(scene)


def freeze_the_trainer(scene: Scene) -> None:
    """The supervisor hears nothing any more, ends the trainer, and hands the run back."""
    scene.cluster.trainer(scene.run).suspend()
    next_attempt(scene)


def kill_the_supervisor(scene: Scene) -> None:
    """The slot's process dies: its trainer ends itself, the lease runs out."""
    scene.cluster.slot(scene.run).kill()
    next_attempt(scene)


def freeze_the_supervisor(scene: Scene) -> None:
    """The lease runs out, another slot goes on, and the one that wakes up writes nothing."""
    slot = scene.cluster.slot(scene.run)
    slot.suspend()
    next_attempt(scene)
    with contextlib.suppress(psutil.NoSuchProcess):  # it froze in the middle of a write to SQLite, and was ended
        slot.resume()


def kill_the_worker(scene: Scene) -> None:
    """The worker with all its slots dies."""
    scene.cluster.service(scene.cluster.worker_of(scene.run)).kill()
    next_attempt(scene)


def freeze_the_worker(scene: Scene) -> None:
    """The worker's parent process stands still; its slot trains on."""
    frozen(scene, scene.cluster.worker_of(scene.run))


def stop_the_worker(scene: Scene) -> None:
    """SIGTERM: it saves a checkpoint, hands the run back, and ends."""
    scene.cluster.service(scene.cluster.worker_of(scene.run)).terminate()
    next_attempt(scene)


def killed(name: str) -> Disturbance:
    """Kill a role that training does not need, and wait for its successor."""

    def kill(scene: Scene) -> None:
        victim = scene.cluster.service(name)
        victim.kill()
        eventually(lambda: scene.cluster.restarted(name, victim), f"{name} is back", 60)

    return kill


def stood_still(name: str) -> Disturbance:
    """Freeze a role that training does not need, for longer than a lease."""
    return lambda scene: frozen(scene, name)


def frozen(scene: Scene, name: str) -> None:
    """Freeze a role for longer than a lease."""
    process = scene.cluster.service(name)
    process.send_signal(signal.SIGSTOP)
    time.sleep(FROZEN_SECONDS)  # allow: sleep, because the role is frozen for so long
    with contextlib.suppress(psutil.NoSuchProcess):  # likewise
        process.send_signal(signal.SIGCONT)


def next_attempt(scene: Scene) -> None:
    """Wait until another attempt has begun."""
    newest = max(scene.attempts(), key=lambda each: each.number)
    if newest.ended_at is None:
        eventually(lambda: max(each.number for each in scene.attempts()) > newest.number, "another attempt", 120)


def going_on(scene: Scene, steps: int = 600) -> None:
    """Wait until the run has come further than ever before."""
    goal = max(each.step for each in scene.attempts()) + steps

    def further() -> bool:
        with scene.cluster.client() as client, contextlib.suppress(ApiError):
            run = client.runs.get(scene.run)
            assert run.state not in {"FAILED", "CANCELLED"}, f"{run.state}: {run.stop_reason} {run.stop_detail}"
            return run.step >= goal
        return False

    eventually(further, f"step {goal}", 180)


TO_PROCESSES: Mapping[str, Disturbance] = {
    "a simulator is killed": kill_a_simulator,
    "a simulator freezes": freeze_a_simulator,
    "the collector is killed": kill_the_collector,
    "the collector freezes": freeze_the_collector,
    "the trainer is killed": kill_the_trainer,
    "the trainer freezes": freeze_the_trainer,
    "the supervisor is killed": kill_the_supervisor,
    "the supervisor freezes": freeze_the_supervisor,
    "the worker is killed": kill_the_worker,
    "the worker freezes": freeze_the_worker,
    "the worker is stopped": stop_the_worker,
    **{f"the {name} is killed": killed(name) for name in ("api", "gateway", "controller")},
    **{f"the {name} freezes": stood_still(name) for name in ("api", "gateway", "controller")},
    **{f"an idle {name} is killed": killed(name) for name in WORKERS[1:]},
}
"""To processes: everything that there is, in turn."""
