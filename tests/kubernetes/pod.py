"""A pod as processes of this machine: its command, environment, mounts, probes, restarts, and its end."""

import asyncio
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from ludus.child_process import ChildProcess
from server.embedded.stack import start_command
from server.kit.processes import MARK, sweep
from tests.e2e.stack import environment
from tests.kubernetes.rendered import Manifests, Pod

HEALTH = Path(__file__).resolve().parents[2] / "docker/health"
IMAGES = {"ludus-server", "ludus-worker", "ludus-worker-gpu", "pgbouncer"}
"""Images that are here: those of Ludus, whose entry point is `ludus`, and Debian's PgBouncer."""
TICK_SECONDS = 0.05
RESTART_SECONDS = 1.0
"""Pause before a container that ended is started again. Kubernetes' grows from 10 s."""
PROPAGATION_SECONDS = 1.0
"""So long a Service sends connections to a pod that was told to end: nodes hear of it at different times."""
log = structlog.get_logger()


@dataclass(frozen=True)
class Node:
    """The machine that runs pods: a folder, and the folders of Secrets by name."""

    folder: Path
    secrets: Mapping[str, Path]
    manifests: Manifests

    def volume(self, volume: Mapping[str, Any], pod: Path) -> Path:
        """Return the folder of a pod's volume. Raises LookupError for a Secret that is not there."""
        if "secret" in volume:
            name = volume["secret"]["secretName"]
            if name in self.secrets:
                return self.secrets[name]
            if not volume["secret"].get("optional"):
                raise LookupError(f'MountVolume.SetUp failed for volume "{volume["name"]}": secret "{name}" not found')
        if "persistentVolumeClaim" in volume:
            folder = self.folder / "claims" / volume["persistentVolumeClaim"]["claimName"]
        else:
            folder = pod / "volumes" / volume["name"]
        folder.mkdir(parents=True, exist_ok=True)
        return folder


@dataclass
class RunningPod:
    """One pod, from its start to its end. Of the event loop's thread; other threads may read."""

    node: Node
    template: Pod
    name: str
    address: str
    """podIP: an address of loopback of its own, at which it listens where its settings say 0.0.0.0."""
    generation: int = 0
    """Number of the template that it was made from."""
    ready: bool = False
    ending: bool = False
    unlisted: bool = False
    """Whether Services have heard that it ends."""
    over: bool = False
    restarts: int = 0
    code: int | None = None
    """Exit code of the container that ended last."""
    faults: list[str] = field(default_factory=list)
    """What Kubernetes would report as a warning: failed liveness, a grace period that was too short."""

    def __post_init__(self) -> None:
        assert self.template.image in IMAGES, f"{self.name}: no image {self.template.image} here"
        self.mark = secrets.token_hex(8)
        self.folder = self.node.folder / "pods" / self.name
        self._root = self.folder / "root"
        self._container: ChildProcess | None = None
        volumes = {volume["name"]: volume for volume in self.template.spec["volumes"]}
        self._mounts = sorted(mount["mountPath"] for mount in self.template.container["volumeMounts"])
        for mount in sorted(self.template.container["volumeMounts"], key=lambda each: str(each["mountPath"])):
            place = self._root / mount["mountPath"].lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(self.node.volume(volumes[mount["name"]], self.folder))
        for volume in filter(lambda each: "configMap" in each, volumes.values()):
            for name, text in self.node.manifests.named("ConfigMap", volume["configMap"]["name"])["data"].items():
                (self.folder / "volumes" / volume["name"] / name).write_text(self._here(text))
        self.environment = self._environment()

    @property
    def role(self) -> str:
        """`app.kubernetes.io/name` of its labels."""
        return str(self.template.metadata["labels"]["app.kubernetes.io/name"])

    @property
    def grace_seconds(self) -> float:
        """Time from the request to end to SIGKILL."""
        return float(self.template.spec.get("terminationGracePeriodSeconds", 30))

    def logs(self) -> str:
        """Return what its containers wrote, as `kubectl logs` does."""
        file = self.folder / "log"
        return file.read_text(errors="replace") if file.exists() else ""

    def port(self, name: str | int) -> int:
        """Return the number of a port of its container."""
        ports = {each["name"]: each["containerPort"] for each in self.template.container.get("ports", ())}
        return name if isinstance(name, int) else int(ports[name])

    def _here(self, text: str) -> str:
        """Return a text with paths of mounts below this pod's root, and this pod's address for all addresses."""
        for path in self._mounts:
            text = text.replace(path, f"{self._root}{path}")
        return text.replace("listen_addr = *", f"listen_addr = {self.address}")

    def _environment(self) -> dict[str, str]:
        """Return the container's variables, with paths below this pod's root and this pod's address."""
        given = self.node.manifests.environment(self.template)
        for each in self.template.container.get("env", ()):
            if "valueFrom" in each:
                assert each["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}, each
                given[each["name"]] = self.address
        here = {
            name: f"{self._root}{value}"
            if value.startswith(tuple(self._mounts))
            else value.replace("0.0.0.0", self.address)
            for name, value in given.items()
        }
        found = environment(**here, TMPDIR=str(self._root / "tmp"), **{MARK: self.mark})
        if (
            code := self.node.manifests.code
        ) is not None:  # before the path to this checkout, and not the working folder
            found |= {"PYTHONPATH": f"{code}:{found.get('PYTHONPATH', '')}", "PYTHONSAFEPATH": "1"}
        return found

    async def live(self) -> None:
        """Run the container, again as `restartPolicy` says, until the pod is over."""
        policy = self.template.spec.get("restartPolicy", "Always")
        try:
            while not self.ending:
                await self._run_container()
                if policy == "Never" or (policy == "OnFailure" and self.code == 0):
                    break
                self.restarts += not self.ending
                await asyncio.sleep(0 if self.ending else RESTART_SECONDS)  # allow: sleep, because a kubelet polls
        finally:
            self.ready, self.over = False, True

    def _start(self) -> ChildProcess:
        log_file = self.folder / "log"
        if self.template.is_ours:
            return start_command(self.template.container["args"], self.environment, log_file)
        user = ["setpriv", "--pdeathsig", "KILL"]
        if os.geteuid() == 0:  # PgBouncer does not run as root
            user += ["--reuid", "postgres", "--regid", "postgres", "--clear-groups"]
        program, *options = [self._here(word) for word in self.template.container["command"]]
        path = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") or program
        with log_file.open("ab") as file:
            return ChildProcess(
                [*user, path, *options], environment=self.environment, own_group=True, stdout=file, stderr=file
            )

    async def _run_container(self) -> None:
        self._container = self._start()
        probing = asyncio.create_task(self._probe())
        try:
            while self._container.exit_code() is None:
                await asyncio.sleep(TICK_SECONDS)  # allow: sleep, because a kubelet polls
        finally:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)
            self.ready = False
            self.code = self._container.end()
            await asyncio.to_thread(sweep, self.mark)  # a container's processes end with its first one

    # probes --------------------------------------------------------------------------------------------------------

    async def _probe(self) -> None:
        probes = {kind: self.template.container.get(f"{kind}Probe") for kind in ("startup", "liveness", "readiness")}
        if probes["startup"]:
            started = asyncio.Event()

            def starting(good: bool) -> None:
                if good:
                    started.set()
                else:
                    self._kill("the start-up probe failed")

            asking = asyncio.create_task(self._ask_again(probes["startup"], starting))
            try:
                await started.wait()
            finally:
                asking.cancel()
        async with asyncio.TaskGroup() as group:
            if probes["liveness"]:
                group.create_task(self._ask_again(probes["liveness"], self._alive))
            if probes["readiness"]:
                group.create_task(self._ask_again(probes["readiness"], self._set_ready))
            else:
                self._set_ready(True)

    def _alive(self, good: bool) -> None:
        if not good:
            self._kill("the liveness probe failed")

    def _set_ready(self, good: bool) -> None:
        self.ready = good

    def _kill(self, reason: str) -> None:
        self.faults.append(reason)
        log.warning("probe_failed", pod=self.name, reason=reason)
        if self._container is not None:
            self._container.kill()

    async def _ask_again(self, probe: Mapping[str, Any], tell: Callable[[bool], None]) -> None:
        """Ask at the probe's period; tell of each success, and of failures from its threshold on."""
        failures = 0
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))  # allow: sleep, because a kubelet polls
        while True:
            try:
                async with asyncio.timeout(probe.get("timeoutSeconds", 1)):
                    good = await self._answers(probe)
            except (OSError, TimeoutError):
                good = False
            failures = 0 if good else failures + 1
            if good or failures >= probe.get("failureThreshold", 3):
                tell(good)
            await asyncio.sleep(probe.get("periodSeconds", 10))  # allow: sleep, because a kubelet polls

    async def _answers(self, probe: Mapping[str, Any]) -> bool:
        if "exec" in probe:
            return await self._execute(probe["exec"]["command"]) == 0
        port = self.port((probe.get("httpGet") or probe["tcpSocket"])["port"])
        reader, writer = await asyncio.open_connection(self.address, port)
        try:
            if "tcpSocket" in probe:
                return True
            writer.write(f"GET {probe['httpGet']['path']} HTTP/1.0\r\nHost: {self.address}\r\n\r\n".encode())
            status = (await reader.readline()).split()
            return len(status) > 1 and 200 <= int(status[1]) < 400
        finally:
            writer.close()

    async def _execute(self, command: list[str]) -> int:
        """Run a command in the container; return its exit code. Process 1 is the container's first one."""
        assert self._container is not None
        first = f"kill -INT {self._container.pid};"
        words = [str(HEALTH) if word == "ludus-health" else word.replace("kill -INT 1;", first) for word in command]
        assert not any(re.search(r"\bkill\b.* 1\b", word) for word in words), "it would signal this machine"
        process = await asyncio.create_subprocess_exec(
            *words, env=self.environment, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    # the end -------------------------------------------------------------------------------------------------------

    async def end(self) -> None:
        """preStop, SIGTERM, and SIGKILL when the grace period is over."""
        self.ending = True
        asyncio.get_running_loop().call_later(PROPAGATION_SECONDS, setattr, self, "unlisted", True)
        try:
            async with asyncio.timeout(self.grace_seconds):
                hook = self.template.container.get("lifecycle", {}).get("preStop")
                if hook and self._container is not None:
                    await self._execute(hook["exec"]["command"])
                if self._container is not None and self._container.exit_code() is None:
                    self._container.terminate()
                while not self.over:
                    await asyncio.sleep(TICK_SECONDS)  # allow: sleep, because a kubelet polls
        except TimeoutError:
            self._kill(f"killed: {self.grace_seconds:g} s of grace were not enough")
            while not self.over:
                await asyncio.sleep(TICK_SECONDS)  # allow: sleep, because a kubelet polls
