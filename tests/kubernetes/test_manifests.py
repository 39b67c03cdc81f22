"""What `kubectl apply -k` would send is valid, and means what Ludus understands."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

from ludus.cli import ludus
from server.kit.settings import Settings
from tests.deployment.deployment import table_of_ports
from tests.kubernetes.rendered import FOLDER, OVERLAYS, Manifests, Pod, kustomize, render
from tests.ludus.protocol.test_tls import CERTIFICATE, PRIVATE

pytestmark = pytest.mark.skipif(kustomize() is None, reason="needs kubectl or kustomize")
HERE = Path(__file__).parent
VERSIONS = ("1.34", "1.37")
"""Kubernetes' oldest supported release, and its newest."""
OWN_SCHEMAS = ("keda.sh/v1alpha1", "monitoring.coreos.com/v1")
PAGE = (FOLDER.parents[1] / "docs/kubernetes.md").read_text()


@pytest.fixture(params=OVERLAYS)
def manifests(request: pytest.FixtureRequest) -> Manifests:
    return render(request.param)


def pods(manifests: Manifests) -> list[Pod]:
    return [pod for pod in manifests.pods() if pod.is_ours]


def settings_names() -> set[str]:
    """Return the variables of all settings, and those that name files of secrets."""
    names = set()
    for group, field in Settings.model_fields.items():
        for key, inner in getattr(field.annotation, "model_fields", {}).items():
            names.add(f"LUDUS_{group}__{key}".upper())
            if "SecretStr" in str(inner.annotation):
                names.add(f"LUDUS_{group}__{key}_FILE".upper())
    return names | {"LUDUS_HOME"}


@pytest.mark.parametrize("version", VERSIONS)
def test_resources_fit_the_schemas_of_kubernetes(manifests: Manifests, version: str) -> None:
    for resource in manifests.resources:
        if resource["apiVersion"] not in OWN_SCHEMAS:
            kubernetes_validate.validate(resource, version, strict=True)


def test_an_unknown_key_would_not_fit() -> None:
    """Negative control: the schemas are strict."""
    deployment = json.loads(json.dumps(render("small").named("Deployment", "api")))
    deployment["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, VERSIONS[0], strict=True)


@pytest.mark.node
@pytest.mark.skipif(not (HERE / "node_modules").exists(), reason="needs `npm ci` in tests/kubernetes")
def test_custom_resources_fit_their_own_schemas(manifests: Manifests) -> None:
    def problems(resources: list[dict[str, Any]]) -> list[str]:
        node = shutil.which("node")
        assert node is not None
        done = subprocess.run(
            [node, "check.js"], cwd=HERE, input=json.dumps(resources), capture_output=True, text=True, check=True
        )
        return list(json.loads(done.stdout))

    own = [each for each in manifests.resources if each["apiVersion"] in OWN_SCHEMAS]
    damaged = json.loads(json.dumps(own[0]))
    damaged["spec"]["pollingInterval" if damaged["kind"] == "ScaledJob" else "selector"] = "often"

    assert {each["kind"] for each in own} >= {
        "ScaledJob",
        "TriggerAuthentication",
        "ServiceMonitor",
        "PodMonitor",
        "PrometheusRule",
    }
    assert problems(own) == []
    assert len(problems([damaged])) == 1


def test_every_variable_is_a_setting(manifests: Manifests) -> None:
    for pod in pods(manifests):
        given = {name for name in manifests.environment(pod) if name.startswith("LUDUS_")}
        given |= {each["name"] for each in pod.container.get("env", ())}
        assert given <= settings_names(), pod.name


def test_the_settings_of_every_pod_are_understood(
    manifests: Manifests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of the secrets are there, of those that the pod mounts; what stands in capitals is filled in."""
    secrets = {"database-url": "postgresql+psycopg://ludus:x@db/ludus", "broker-url": "redis://redis:6379/0"}
    for pod in pods(manifests):
        mounted = tuple(f"{mount['mountPath']}/" for mount in pod.container["volumeMounts"])
        for name in [name for name in os.environ if name.startswith("LUDUS_")]:
            monkeypatch.delenv(name)
        for name, value in manifests.environment(pod).items():
            if value.startswith("/run/secrets/") and not value.startswith(mounted):
                monkeypatch.setenv(name, value)
            elif name.endswith("_FILE"):
                file = tmp_path / Path(value).name
                file.write_text(secrets.get(file.name, "x" * 40))
                monkeypatch.setenv(name, str(file))
            elif name.endswith(("TLS_CERTIFICATE", "TLS_KEY")):
                monkeypatch.setenv(name, str(CERTIFICATE if name.endswith("CERTIFICATE") else PRIVATE))
            else:
                monkeypatch.setenv(name, value.replace("BUCKET", "bucket").replace("REGION", "eu-central-1"))
        settings = Settings()
        assert settings.database.url.get_secret_value() == secrets["database-url"]
        assert settings.api.token is not None


def test_every_command_exists(manifests: Manifests) -> None:
    for pod in pods(manifests):
        command, *options = pod.container["args"]
        found = ludus.get_command(click.Context(ludus), command)
        assert found is not None, command
        known = {option for parameter in found.params for option in parameter.opts}
        assert {option for option in options if option.startswith("--")} <= known


def test_a_missing_secret_lets_the_process_start_and_say_so(manifests: Manifests) -> None:
    for pod in pods(manifests):
        (secret,) = [each["secret"] for each in pod.spec["volumes"] if each["name"] == "secrets"]
        assert secret == {"secretName": "ludus", "optional": True}, pod.name


def test_the_page_lists_the_files_of_the_secret(manifests: Manifests) -> None:
    wanted = {
        Path(value).name
        for pod in pods(manifests)
        for name, value in manifests.environment(pod).items()
        if name.endswith("_FILE")
    }
    wanted |= {"queue-token"} | ({"postgres-password"} if manifests is render("small") else set())

    assert wanted <= set(re.findall(r"^\| `([a-z0-9-]+)` \|", PAGE, re.MULTILINE))


def test_pods_fit_the_restricted_pod_security_standard(manifests: Manifests) -> None:
    for pod in manifests.pods():
        assert pod.spec["securityContext"]["runAsNonRoot"] is True
        assert pod.spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod.container["securityContext"]["allowPrivilegeEscalation"] is False
        assert pod.container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert not pod.spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}
        assert all("hostPath" not in volume for volume in pod.spec["volumes"])
        assert pod.spec["automountServiceAccountToken"] is False


def test_an_evicted_worker_has_time_for_its_last_checkpoint(manifests: Manifests) -> None:
    for pod in pods(manifests):
        if pod.owner["kind"] == "ScaledJob":
            assert pod.spec["terminationGracePeriodSeconds"] > Settings().worker.stop_seconds + 10


def test_every_pool_has_workers_that_fit_it(manifests: Manifests) -> None:
    (api,) = [pod for pod in pods(manifests) if pod.name == "api"]
    pools = json.loads(manifests.environment(api)["LUDUS_SCHEDULING__POOLS"])
    jobs = manifests.of_kind("ScaledJob")

    asked = {}
    for job in jobs:
        (trigger,) = job["spec"]["triggers"]
        pool = trigger["metadata"]["url"].partition("?pool=")[2]
        (container,) = job["spec"]["jobTargetRef"]["template"]["spec"]["containers"]
        asked[pool] = int(container["resources"]["limits"].get("nvidia.com/gpu", 0))
        assert job["metadata"]["name"] == f"worker-{pool}"

    assert asked == {name: pool.get("gpus", 0) for name, pool in pools.items()}


def test_only_the_ports_of_the_page_are_open(manifests: Manifests) -> None:
    published = {(service, first, last) for _, services, first, last in table_of_ports() for service in services}
    closed = manifests.named("NetworkPolicy", "closed")["spec"]
    opened = {
        (policy["metadata"]["name"], port["port"], port.get("endPort", port["port"]))
        for policy in manifests.of_kind("NetworkPolicy")
        for rule in policy["spec"].get("ingress", ())
        for port in rule["ports"]
        if policy["metadata"]["name"] in {"api", "gateway", "worker"}
    }

    assert closed == {"podSelector": {}, "policyTypes": ["Ingress"]}
    websockets = ("gateway", 7071, 7071)  # off in a cluster: whoever turns them on opens their port
    assert opened == {each for each in published if each[0] in {"api", "gateway", "worker"}} - {websockets}


def test_roles_that_are_doubled_have_a_disruption_budget() -> None:
    manifests = render("production")
    doubled = {each["metadata"]["name"] for each in manifests.of_kind("Deployment") if each["spec"]["replicas"] > 1}

    assert doubled == {"api", "gateway", "controller", "pgbouncer"}
    assert {each["metadata"]["name"] for each in manifests.of_kind("PodDisruptionBudget")} == doubled


def test_what_an_operator_fills_in_stands_in_capitals() -> None:
    """Nothing else of the production overlay is a name of somebody's cluster."""
    files = sorted((FOLDER / "overlays/production").glob("*.yaml"))
    text = "\n".join(file.read_text() for file in files)

    assert set(re.findall(r"\b(?:REGISTRY|VERSION|BUCKET|REGION|DATABASE-HOST|LUDUS\.EXAMPLE\.COM)\b", text))
    assert "latest" not in text


def asked(pod: Pod, probe: str) -> str:
    """Return the path or the command of a probe. Its port must be one that the pod names."""
    action = pod.container[probe]
    if "exec" in action:
        return " ".join(action["exec"]["command"])
    assert action["httpGet"]["port"] in {port["name"] for port in pod.container["ports"]}, pod.name
    return str(action["httpGet"]["path"])


def test_every_role_has_all_probes_and_only_readiness_asks_outside_of_its_process(manifests: Manifests) -> None:
    """/healthz and the worker's file tell of the process alone: without its database a pod is not restarted."""
    roles = [pod for pod in pods(manifests) if pod.owner["kind"] != "Job"]

    found = {
        pod.name: [asked(pod, probe) for probe in ("startupProbe", "livenessProbe", "readinessProbe")] for pod in roles
    }

    server = ["/healthz", "/healthz", "/readyz"]
    workers = {job["metadata"]["name"]: 3 * ["ludus-health worker"] for job in manifests.of_kind("ScaledJob")}
    assert workers
    assert found == {"api": server, "gateway": server, "controller": server, **workers}


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Return whether a label selector selects something with these labels."""
    expressions = selector.get("matchExpressions", ())
    assert selector.keys() <= {"matchLabels", "matchExpressions"}
    assert all(each["operator"] == "In" for each in expressions)
    return labels.items() >= selector.get("matchLabels", {}).items() and all(
        labels.get(each["key"]) in each["values"] for each in expressions
    )


def selected(manifests: Manifests, selector: dict[str, Any]) -> list[Pod]:
    return [pod for pod in manifests.pods() if selects(selector, pod.metadata["labels"])]


def listened(manifests: Manifests, pod: Pod) -> set[int]:
    """Return the ports at which a pod listens: those of its container, and a worker's range for simulators."""
    named = {int(port["containerPort"]) for port in pod.container.get("ports", ())}
    first, last = json.loads(manifests.environment(pod).get("LUDUS_WORKER__PORT_RANGE", "[0, -1]"))
    return named | set(range(first, last + 1))


def let_in(rule: dict[str, Any]) -> set[int]:
    """Return the ports of a rule of a NetworkPolicy."""
    return {number for each in rule["ports"] for number in range(each["port"], each.get("endPort", each["port"]) + 1)}


def ingress_rules(manifests: Manifests) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return all rules of NetworkPolicies, each with the selector of its policy."""
    specs = [policy["spec"] for policy in manifests.of_kind("NetworkPolicy")]
    return [(spec["podSelector"], rule) for spec in specs for rule in spec.get("ingress", ())]


def test_every_pod_is_closed_but_for_the_ports_at_which_it_listens(manifests: Manifests) -> None:
    policies = manifests.of_kind("NetworkPolicy")
    for pod in manifests.pods():
        own = [each for each in policies if selects(each["spec"]["podSelector"], pod.metadata["labels"])]
        assert any("Ingress" in each["spec"]["policyTypes"] for each in own), pod.name
        opened = {port for each in own for rule in each["spec"].get("ingress", ()) for port in let_in(rule)}
        assert listened(manifests, pod) <= opened, pod.name

    for selector, rule in ingress_rules(manifests):
        behind = {port for pod in selected(manifests, selector) for port in listened(manifests, pod)}
        assert let_in(rule) <= behind, rule


def test_policies_name_senders_that_exist(manifests: Manifests) -> None:
    """Each pod by its label. From elsewhere come simulators, and Prometheus, whose namespace the page names."""
    label = "app.kubernetes.io/name"
    names = {pod.metadata["labels"][label] for pod in manifests.pods()}
    senders = [sender for _, rule in ingress_rules(manifests) for sender in rule.get("from", ())]

    assert senders
    for sender in senders:
        if "podSelector" in sender:
            (expression,) = sender["podSelector"]["matchExpressions"]
            assert expression["key"] == label
            assert set(expression["values"]) <= names
        else:
            namespaces = sender["namespaceSelector"].get("matchLabels", {}).values()
            assert all(f"namespace\n`{name}`" in PAGE or f"namespace `{name}`" in PAGE for name in namespaces)


def test_the_database_and_the_queue_are_open_to_those_that_the_page_names(manifests: Manifests) -> None:
    table = {target: set(sources) for sources, targets, _, _ in table_of_ports() for target in targets}
    table["pgbouncer"] = table["postgres"]  # what stands before the database
    (queues, databases) = ({"redis"}, {"postgres", "pgbouncer"})

    found = {}
    for policy in manifests.of_kind("NetworkPolicy"):
        if policy["metadata"]["name"] in queues | databases:
            (rule,) = policy["spec"]["ingress"]
            (sender,) = rule["from"]
            found[policy["metadata"]["name"]] = {
                pod.metadata["labels"]["app.kubernetes.io/name"] for pod in selected(manifests, sender["podSelector"])
            }

    assert found.keys() & databases
    assert found == {name: table[name] for name in found}


def test_prometheus_finds_every_role_and_may_ask_it(manifests: Manifests) -> None:
    """By the name of a port, of a Service or of a pod; the pods' policies let the namespace `monitoring` in there."""

    def numbers(pod: Pod, name: str) -> set[int]:
        return {port["containerPort"] for port in pod.container["ports"] if port["name"] == name}

    asked = []
    for monitor in manifests.of_kind("ServiceMonitor"):
        (endpoint,) = monitor["spec"]["endpoints"]
        (service,) = [
            each
            for each in manifests.of_kind("Service")
            if selects(monitor["spec"]["selector"], each["metadata"].get("labels", {}))
        ]
        (port,) = [each for each in service["spec"]["ports"] if each["name"] == endpoint["port"]]
        behind = selected(manifests, {"matchLabels": service["spec"]["selector"]})
        asked += [(pod, numbers(pod, port["targetPort"])) for pod in behind]
    for monitor in manifests.of_kind("PodMonitor"):
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        behind = selected(manifests, monitor["spec"]["selector"])
        asked += [(pod, numbers(pod, endpoint["port"])) for pod in behind]

    assert {pod.name for pod, _ in asked} == {pod.name for pod in pods(manifests) if pod.owner["kind"] != "Job"}
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    for pod, ports in asked:
        opened = {
            port
            for selector, rule in ingress_rules(manifests)
            if selects(selector, pod.metadata["labels"]) and monitoring in rule.get("from", [monitoring])
            for port in let_in(rule)
        }
        assert len(ports) == 1, pod.name
        assert ports <= opened, pod.name


@pytest.mark.long
def test_rules_are_those_of_prometheus() -> None:
    """`PrometheusRule` has the groups of deploy/prometheus."""
    rules = yaml.safe_load((FOLDER.parent / "prometheus/ludus.rules.yaml").read_text())

    assert render("small").of_kind("PrometheusRule")[0]["spec"]["groups"] == rules["groups"]
