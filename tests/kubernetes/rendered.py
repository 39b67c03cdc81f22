"""Renders an overlay of deploy/kubernetes."""

import functools
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parents[2] / "deploy/kubernetes"
OVERLAYS = ("small", "production")


def kustomize() -> list[str] | None:
    """Return the command that renders a folder, if it is installed."""
    if shutil.which("kubectl"):
        return ["kubectl", "kustomize"]
    return ["kustomize", "build"] if shutil.which("kustomize") else None


@dataclass(frozen=True)
class Pod:
    """A pod that some resource starts."""

    owner: dict[str, Any]
    """The Deployment, StatefulSet, Job or ScaledJob."""
    metadata: dict[str, Any]
    spec: dict[str, Any]

    @property
    def name(self) -> str:
        """The owner's name."""
        return str(self.owner["metadata"]["name"])

    @property
    def container(self) -> dict[str, Any]:
        """Its only container."""
        (container,) = self.spec["containers"]
        return dict(container)

    @property
    def image(self) -> str:
        """The image of its container, without registry and tag."""
        return str(self.container["image"]).rpartition("/")[2].partition(":")[0]

    @property
    def is_ours(self) -> bool:
        """Whether it runs a role of Ludus."""
        return self.image.startswith("ludus-")


@dataclass(frozen=True)
class Manifests:
    """The resources of one overlay."""

    resources: list[dict[str, Any]]
    code: Path | None = None
    """The checkout that pods of Ludus run; None: this one."""

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """Return the resources of a kind."""
        return [each for each in self.resources if each["kind"] == kind]

    def named(self, kind: str, name: str) -> dict[str, Any]:
        """Return one resource."""
        (found,) = [each for each in self.of_kind(kind) if each["metadata"]["name"] == name]
        return found

    def pods(self) -> Iterator[Pod]:
        """Iterate over the pods of all resources."""
        for resource in self.resources:
            spec = resource.get("spec", {})
            template = spec.get("template") or spec.get("jobTargetRef", {}).get("template")
            if template is not None:
                yield Pod(resource, template.get("metadata", {}), template["spec"])

    def environment(self, pod: Pod) -> dict[str, str]:
        """Return the variables of a pod's container, without those that take their value from the pod."""
        found: dict[str, str] = {}
        for source in pod.container.get("envFrom", ()):
            found |= self.named("ConfigMap", source["configMapRef"]["name"])["data"]
        return found | {each["name"]: each["value"] for each in pod.container.get("env", ()) if "value" in each}


@functools.cache
def render(overlay: str | Path, code: Path | None = None) -> Manifests:
    """Render an overlay of deploy/kubernetes, or another folder, as `kubectl apply -k` would.

    `code`: the checkout that pods of Ludus run; None: this one.
    """
    command = kustomize()
    assert command is not None, "needs kubectl or kustomize"
    folder = FOLDER / "overlays" / overlay if isinstance(overlay, str) else overlay
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Manifests(list(yaml.safe_load_all(done.stdout)), code)
