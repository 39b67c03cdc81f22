"""A cluster of one machine that runs rendered manifests: what Kubernetes and KEDA do, as far as Ludus can tell.

It stands in for Kubernetes, and for nothing of Ludus: every pod is the real process. It knows Jobs, Deployments with
rolling updates, ScaledJobs, Services, PodDisruptionBudgets and evictions. It runs Ludus and PgBouncer; databases and
queues are the caller's.
"""

import asyncio
import dataclasses
import itertools
import secrets
import threading
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import httpx2
import structlog

from server.kit.processes import marked, sweep
from tests.kubernetes.pod import IMAGES, TICK_SECONDS, Node, RunningPod
from tests.kubernetes.rendered import Manifests, Pod
from tests.kubernetes.service import Service

END_SECONDS = 180.0
"""Time-out of the end of everything."""
Value = TypeVar("Value")
log = structlog.get_logger()


class Kubelet:
    """Runs manifests from `start` to `stop`, in a thread of its own."""

    def __init__(self, manifests: Manifests, folder: Path, secret_folders: Mapping[str, Path]) -> None:
        """`secret_folders`: name of each Secret -> folder with its files."""
        self._node = Node(folder, secret_folders, manifests)
        self._network = f"127.{1 + secrets.randbelow(254)}"
        self._numbers = itertools.count()
        self._generation = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.pods: list[RunningPod] = []
        """All that ever were."""
        self.services: dict[str, Service] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kubelet")

    @property
    def manifests(self) -> Manifests:
        """Those that were applied last."""
        return self._node.manifests

    @property
    def _templates(self) -> Mapping[str, Pod]:
        """Pods that can run here, by the name of what starts them."""
        return {pod.name: pod for pod in self.manifests.pods() if pod.image in IMAGES}

    # for other threads ---------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._call(self._stop(), END_SECONDS)
        except TimeoutError:
            for pod in self.pods:
                sweep(pod.mark)
            raise
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _call(self, coroutine: Coroutine[Any, Any, Value], seconds: float = 30.0) -> Value:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(seconds)

    def apply(self) -> None:
        """Start what the manifests say."""
        self._call(self._apply())

    def start(self, name: str) -> RunningPod:
        """Start one pod of a resource, which nothing replaces."""
        return self._call(self._start_one(name))

    def address(self, service: str, port: str) -> str:
        """Return `host:port` of a Service."""
        return self.services[service].endpoint(port)

    def of_role(self, role: str) -> list[RunningPod]:
        """Return the pods of a role that are not over."""
        return [pod for pod in list(self.pods) if pod.role == role and not pod.over]

    def ready(self) -> bool:
        """Whether every Deployment has all its replicas, ready, of the newest template, and nothing else."""
        for resource in self.manifests.of_kind("Deployment"):
            pods = self.of_role(resource["metadata"]["name"])
            if resource["metadata"]["name"] in self._templates and (
                len(pods) != resource["spec"]["replicas"]
                or not all(pod.ready and pod.generation == self._generation for pod in pods)
            ):
                return False
        return True

    def evict(self, pod: RunningPod) -> bool:
        """Ask a pod to end, as the eviction API does; False where a disruption budget forbids it."""
        return self._call(self._evict(pod))

    def upgrade(self, manifests: Manifests) -> None:
        """Apply a new release: its Job `migrate`, and new pods for old ones, one after the other; see `ready`."""
        self._call(self._upgrade(manifests))

    def left(self) -> list[int]:
        """Return the processes of all pods that live."""
        return [pid for pod in list(self.pods) for pid in marked(pod.mark)]

    # Jobs, Deployments and ScaledJobs ------------------------------------------------------------------------------

    async def _start(self) -> None:
        for number, resource in enumerate(self.manifests.of_kind("Service")):
            name, selector = resource["metadata"]["name"], resource["spec"].get("selector", {})
            if selector.get("app.kubernetes.io/name") in self._templates:
                service = Service(resource, f"{self._network}.250.{number + 1}", self._endpoints)
                await service.start()
                self.services[name] = service

    async def _start_one(self, name: str) -> RunningPod:
        return self._start_pod(self._templates[name])

    async def _apply(self) -> None:
        self._start_pod(self._templates["migrate"])
        for resource in self.manifests.of_kind("Deployment"):
            if resource["metadata"]["name"] in self._templates:
                self._keep(self._deployment(resource))
        for resource in self.manifests.of_kind("ScaledJob"):
            self._keep(self._scaled_job(resource))

    def _keep(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _start_pod(self, template: Pod) -> RunningPod:
        number = next(self._numbers)
        address = f"{self._network}.{number // 250 + 1}.{number % 250 + 1}"
        pod = RunningPod(self._node, template, f"{template.name}-{number}", address, self._generation)
        self.pods.append(pod)
        self._keep(pod.live())
        return pod

    async def _deployment(self, resource: Mapping[str, Any]) -> None:
        """Keep the replicas: at most one more than wanted (maxSurge 1), and as many ready (maxUnavailable 0)."""
        name, wanted = resource["metadata"]["name"], resource["spec"]["replicas"]
        assert resource["spec"]["strategy"] == {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}, name
        while True:
            pods = [pod for pod in self.of_role(name) if not pod.ending]
            old = [pod for pod in pods if pod.generation != self._generation]
            if len(pods) - len(old) < wanted and len(pods) < wanted + 1:
                self._start_pod(self._templates[name])
            elif old and sum(pod.ready for pod in pods) - old[0].ready >= wanted:
                self._keep(old[0].end())
            await asyncio.sleep(TICK_SECONDS)  # allow: sleep, because a kubelet polls

    async def _scaled_job(self, resource: Mapping[str, Any]) -> None:
        """Start as many Jobs as the trigger says, less those that are pending (KEDA's strategy `accurate`)."""
        name, spec = resource["metadata"]["name"], resource["spec"]
        (trigger,) = spec["triggers"]
        assert spec["scalingStrategy"] == {"strategy": "accurate", "pendingPodConditions": ["Ready"]}
        url = urlsplit(trigger["metadata"]["url"])
        authentication = self.manifests.named("TriggerAuthentication", trigger["authenticationRef"]["name"])
        (token,) = authentication["spec"]["secretTargetRef"]
        async with httpx2.AsyncClient(trust_env=False) as client:
            while True:
                await asyncio.sleep(spec["pollingInterval"])  # allow: sleep, because a kubelet polls
                file = self._node.secrets[token["name"]] / token["key"]
                if not file.exists():
                    continue
                here = url._replace(netloc=self.services[str(url.hostname).partition(".")[0]].endpoint(url.port))
                try:
                    answer = await client.get(here.geturl(), headers={"Authorization": f"Bearer {file.read_text()}"})
                    answer.raise_for_status()
                except httpx2.HTTPError as error:
                    log.warning("trigger_failed", job=name, reason=repr(error))
                    continue
                missing = int(answer.json()[trigger["metadata"]["valueLocation"]])
                running = [pod for pod in list(self.pods) if pod.template.name == name and not pod.over]
                pending = [pod for pod in running if not pod.ready]
                for _ in range(min(missing - len(pending), spec["maxReplicaCount"] - len(running))):
                    self._start_pod(self._templates[name])

    async def _upgrade(self, manifests: Manifests) -> None:
        self._node = dataclasses.replace(self._node, manifests=manifests)
        self._generation += 1
        self._start_pod(self._templates["migrate"])

    # Services, evictions, the end ----------------------------------------------------------------------------------

    def _endpoints(self, role: str) -> list[RunningPod]:
        return [pod for pod in self.pods if pod.role == role and pod.ready and not pod.unlisted]

    def _budget(self, role: str) -> int:
        """Return how many pods of a role must stay ready."""
        return max(
            (
                each["spec"]["minAvailable"]
                for each in self.manifests.of_kind("PodDisruptionBudget")
                if each["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"] == role
            ),
            default=0,
        )

    async def _evict(self, pod: RunningPod) -> bool:
        others = [each for each in self.of_role(pod.role) if each is not pod and each.ready and not each.ending]
        if pod.ending or pod.over or len(others) < self._budget(pod.role):
            return False
        pod.ending = True
        self._keep(pod.end())
        return True

    async def _stop(self) -> None:
        live = {pod.name: pod for pod in self.pods if not pod.over}
        for task in [task for task in self._tasks if task.get_coro().__name__ not in {"live", "end"}]:
            task.cancel()
        await asyncio.gather(*(pod.end() for pod in live.values()))
        for service in self.services.values():
            await service.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.sleep(0)  # allow: sleep, because a kubelet polls


def faults(pods: list[RunningPod]) -> Iterator[str]:
    """Yield what Kubernetes would warn of."""
    for pod in pods:
        yield from (f"{pod.name}: {fault}" for fault in pod.faults)
