"""The Helm chart, rendered for each file of values in `ci/`: objects by their schemas, and names by the product."""

from __future__ import annotations

import copy
import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.terminal import refold
from tests.packaging.manifests import lint, problems, rendered

from refold.cli.commands.serve.executor import LAST_S
from refold.cli.commands.serve.planner import DRAIN_S
from refold.cli.commands.serve.process import CLOSE_S
from refold.core.topics import executors, tool_requested
from refold.core.wire.resources import resource
from refold.dev.ports import free_port
from refold.engine.adapters.kafka.acls import expected_acls, principals
from refold.engine.runtime.gauges import Vitals
from refold.engine.runtime.metrics import shown
from refold.engine.runtime.settings import Settings, load

CHART = resource("infra", "helm/refold")
VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
SECRETS = {"REDIS__URL": "rediss://u:p@redis:6379/0", "VIEWS__URL": "postgresql://u:p@db/views"}
"""Contents of Secrets; all others are keys."""

Object = dict[str, Any]


def by_kind(objects: list[Object], *kinds: str) -> list[Object]:
    return [each for each in objects if each["kind"] in kinds]


def pods(objects: list[Object]) -> dict[str, Object]:
    """Pods by component: `executor-default`."""
    found = {}
    for each in by_kind(objects, "StatefulSet", "Deployment", "CronJob"):
        spec = each["spec"]["jobTemplate"]["spec"] if each["kind"] == "CronJob" else each["spec"]
        found[spec["template"]["metadata"]["labels"]["app.kubernetes.io/component"]] = spec["template"]["spec"]
    return found


def variables(pod: Object) -> dict[str, str]:
    """Environment of a pod, as Kubernetes makes it: a reference to an earlier variable is its value."""
    values: dict[str, str] = {}
    for each in pod["containers"][0]["env"]:
        text = each.get("value")
        if text is None:
            (source,) = each["valueFrom"]
            text = SECRETS.get(each["name"].removeprefix("REFOLD_"), "ab" * 32 if source == "secretKeyRef" else "pod-0")
        values[each["name"]] = re.sub(r"\$\((\w+)\)", lambda name: values[name[1]], text)
    return values


def settings(pod: Object, patch: pytest.MonkeyPatch) -> Settings:
    """Settings of a pod, as its process loads them. **Raises** UsageError for a variable that is none."""
    with patch.context() as context:
        for name, value in variables(pod).items():
            context.setenv(name, value)
        return load()


@pytest.fixture(params=VALUES, ids=lambda path: path.stem.removesuffix("-values"))
def objects(request: pytest.FixtureRequest) -> list[Object]:
    """Give the objects that the chart makes of a file of values."""
    return rendered(CHART, request.param)


@pytest.fixture
def strimzi() -> list[Object]:
    """Give the objects of the fullest file of values."""
    return rendered(CHART, CHART / "ci" / "strimzi-values.yaml")


def test_there_are_files_of_values_for_what_the_chart_can_do() -> None:
    kinds = {each["kind"] for path in VALUES for each in rendered(CHART, path)}

    assert len(VALUES) == 3
    assert kinds >= {"StatefulSet", "Deployment", "CronJob", "Service", "NetworkPolicy", "PodDisruptionBudget"}
    assert kinds >= {"ServiceMonitor", "PrometheusRule", "ScaledObject", "TriggerAuthentication", "ConfigMap"}
    assert "Secret" not in kinds


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_helm_has_nothing_to_say(values: Path) -> None:
    assert lint(CHART, values) == []


def test_every_object_is_what_its_schema_says(objects: list[Object]) -> None:
    assert {each["metadata"]["name"]: found for each in objects if (found := problems(each))} == {}


def test_a_field_that_no_schema_has_is_found(strimzi: list[Object]) -> None:
    for kind in {each["kind"] for each in strimzi}:
        spoilt = copy.deepcopy(by_kind(strimzi, kind)[0])
        spoilt.get("spec", spoilt)["replicaz"] = 1
        assert problems(spoilt), kind
    probed = copy.deepcopy(by_kind(strimzi, "StatefulSet")[0])
    probed["spec"]["template"]["spec"]["containers"][0]["livenessProbes"] = {}
    assert problems(probed)


def test_no_two_objects_have_one_name(objects: list[Object]) -> None:
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]

    assert len({*names}) == len(names)


def test_every_variable_is_a_setting(objects: list[Object], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, pod in pods(objects).items():
        loaded = settings(pod, monkeypatch)

        assert {*variables(pod)} - {"KAFKA_PASSWORD"} == {each for each in variables(pod) if each.startswith("REFOLD_")}
        assert loaded.member == "pod-0", name
        assert loaded.metrics.address == "0.0.0.0:9464"


def test_a_variable_that_is_no_setting_is_found(strimzi: list[Object], monkeypatch: pytest.MonkeyPatch) -> None:
    pod = pods(strimzi)["planner"]
    pod["containers"][0]["env"].append({"name": "REFOLD_PLANNER__ACTIVE", "value": "7"})

    with pytest.raises(Exception, match="REFOLD_PLANNER__ACTIVE"):
        settings(pod, monkeypatch)


def test_values_reach_the_settings_as_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    found = pods(rendered(CHART, CHART / "ci" / "certificates-values.yaml"))
    planner, gateway = (settings(found[name], monkeypatch) for name in ("planner", "gateway"))

    assert planner.planner.active_runs == 1_000_000
    assert (planner.kafka.prefix, planner.environment) == ("acme.", "production")
    assert "sasl.username" not in planner.kafka.options
    assert (gateway.gateway.hosts, gateway.gateway.roles) == (
        ("refold.example", "refold.internal"),
        {"sre": "operator"},
    )


def test_every_command_line_is_one_of_the_product(objects: list[Object]) -> None:
    for name, pod in pods(objects).items():
        words = pod["containers"][0]["args"]

        result = refold(*words, "--help")

        assert result.exit_code == 0, (name, result.output)
        assert all(word in result.output for word in words if word.startswith("--")), name
        assert refold(*words, "--poool", "--help").exit_code == 2


def test_probes_ask_what_the_metrics_server_answers(objects: list[Object]) -> None:
    vitals, port = Vitals(), free_port()
    vitals.stand("")
    with shown(str(port), {"planner": vitals}, (), ends=lambda _: {}):
        for name, pod in pods(objects).items():
            (container,) = pod["containers"]
            paths = {of: container[of]["httpGet"] for of in container if of.endswith("Probe")}
            if name in ("insights", "archivist"):  # one shows no metrics, the other is over soon
                assert not paths
                continue
            assert {of: at["path"] for of, at in paths.items()} == {
                "startupProbe": "/startupz",
                "readinessProbe": "/readyz",
                "livenessProbe": "/livez",
            }
            named = {each["name"]: each["containerPort"] for each in container["ports"]}
            for at in paths.values():
                assert variables(pod)["REFOLD_METRICS__ADDRESS"].endswith(f":{named[at['port']]}")
                assert urllib.request.urlopen(f"http://127.0.0.1:{port}{at['path']}").status == 200


def test_prometheus_scrapes_what_the_metrics_server_serves(strimzi: list[Object]) -> None:
    (monitor,), (rule,) = by_kind(strimzi, "ServiceMonitor"), by_kind(strimzi, "PrometheusRule")
    service = next(each for each in by_kind(strimzi, "Service") if each["spec"].get("clusterIP") == "None")

    assert service["metadata"]["labels"].items() >= monitor["spec"]["selector"]["matchLabels"].items()
    assert [at["port"] for at in monitor["spec"]["endpoints"]] == [port["name"] for port in service["spec"]["ports"]]
    assert rule["spec"] == yaml.safe_load(resource("infra", "alerts.yaml").read_text())


def test_a_pod_is_killed_after_its_process_would_have_ended(
    objects: list[Object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, pod in pods(objects).items():
        tools_s = (
            settings(pod, monkeypatch).executor.grace_ms / 1000 + LAST_S if name.startswith("executor") else DRAIN_S
        )

        assert pod["terminationGracePeriodSeconds"] > tools_s + CLOSE_S, name


def selected(objects: list[Object], labels: Object) -> set[str]:
    """Components whose pods have these labels."""
    found = set()
    for each in by_kind(objects, "StatefulSet", "Deployment"):
        own = each["spec"]["template"]["metadata"]["labels"]
        found |= {own["app.kubernetes.io/component"]} if own.items() >= labels.items() else set()
    return found


def test_a_selector_selects_the_pods_of_its_own_object(objects: list[Object]) -> None:
    for each in by_kind(objects, "StatefulSet", "Deployment", "PodDisruptionBudget"):
        labels = each["spec"]["selector"]["matchLabels"]
        assert selected(objects, labels) == {each["metadata"]["labels"]["app.kubernetes.io/component"]}
    services = {each["metadata"]["name"] for each in by_kind(objects, "Service")}
    assert {each["spec"]["serviceName"] for each in by_kind(objects, "StatefulSet")} <= services


def logins(pod: Object) -> Iterator[str]:
    for each in pod["containers"][0]["env"]:
        if each["name"] == "KAFKA_PASSWORD":
            yield each["valueFrom"]["secretKeyRef"]["name"]


def manifests(*words: str) -> list[Object]:
    """Objects that `refold topics manifests` prints for the pools of the files of values."""
    pools = [f"executor.{pool}=User:refold-executor-{pool}" for pool in ("default", "gpu_jobs")]
    options = [part for principal in pools for part in ("--principal", principal)]
    found: list[Object] = json.loads(refold("topics", "manifests", *options, *words, "--json").stdout)
    return found


def test_each_service_logs_in_as_a_user_that_strimzi_makes(
    strimzi: list[Object], monkeypatch: pytest.MonkeyPatch
) -> None:
    users = {each["metadata"]["name"]: each for each in manifests() if each["kind"] == "KafkaUser"}
    found = pods(strimzi)
    roles = {name: login for name, pod in found.items() for login in logins(pod)}

    for name, login in roles.items():
        options = settings(found[name], monkeypatch).kafka.options
        assert options["sasl.username"] == users[login]["spec"].get("userName", login)
        assert options["sasl.password"] == variables(found[name])["KAFKA_PASSWORD"]
    assert roles == {
        "planner": "refold-planner",
        "approval": "refold-approval",
        "executor-default": "refold-executor-default",
        "executor-gpu_jobs": "refold-executor-gpu-jobs",
        "gateway": "refold-gateway",
        "projections": "refold-viewer",
        "telemetry": "refold-viewer",
        "insights": "refold-insights",
        "archivist": "refold-archivist",
    }


def test_the_autoscaler_reads_the_lag_of_the_group_that_executors_commit_in(strimzi: list[Object]) -> None:
    rules = {(acl.principal, acl.kind, acl.name) for acl in expected_acls("refold.", principals())}
    scaled = {each["spec"]["scaleTargetRef"]["name"]: each["spec"] for each in by_kind(strimzi, "ScaledObject")}

    assert scaled.keys() == {"refold-executor-default", "refold-executor-gpu-jobs"}
    for pool, spec in zip(("default", "gpu_jobs"), scaled.values(), strict=True):
        trigger = spec["triggers"][0]["metadata"]
        assert trigger["consumerGroup"] == f"refold.{executors(pool)}"
        assert trigger["topic"] == f"refold.{tool_requested(pool)}"
        assert ("User:refold-viewer", "topic", "refold.tool-requested.") in rules
        assert ("User:refold-viewer", "group", "refold.refold-executor-") in rules
        assert spec["maxReplicaCount"] <= 12
    assert scaled["refold-executor-gpu-jobs"]["minReplicaCount"] == 0
    sets = {each["metadata"]["name"]: each for each in by_kind(strimzi, "StatefulSet")}
    assert not any("replicas" in sets[name]["spec"] for name in scaled)
    (login,) = by_kind(strimzi, "TriggerAuthentication")
    (public,) = by_kind(strimzi, "ConfigMap")
    assert {each["parameter"] for each in login["spec"]["secretTargetRef"]} == {"password", "ca"}
    assert public["data"] == {"username": "refold-viewer"}


def secrets(pod: Object) -> set[str]:
    files = {each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each}
    references = [each["valueFrom"].get("secretKeyRef") for each in pod["containers"][0]["env"] if "valueFrom" in each]
    return files | {each["name"] for each in references if each}


def test_each_secret_is_where_it_is_used_and_nowhere_else(strimzi: list[Object]) -> None:
    holders: dict[str, set[str]] = {}
    for name, pod in pods(strimzi).items():
        for secret in secrets(pod):
            holders.setdefault(secret, set()).add(name)

    assert holders.pop("kafka-cluster-ca-cert") == {*pods(strimzi)}
    assert {secret: names for secret, names in holders.items() if not secret.startswith("refold-executor-")} == {
        "refold-planner": {"planner"},
        "refold-approval": {"approval"},
        "refold-gateway": {"gateway"},
        "refold-viewer": {"projections", "telemetry"},
        "refold-archivist": {"archivist"},
        "refold-insights": {"insights"},
        "refold-decision-key": {"approval"},
        "refold-vote-key": {"gateway"},
        "refold-session": {"gateway"},
        "refold-logins": {"gateway"},
        "refold-views": {"gateway", "projections", "telemetry"},
        "refold-pool-default": {"executor-default"},
        "refold-pool-gpu": {"executor-gpu_jobs"},
    }


@pytest.mark.parametrize("text", ["replicaz: 2", "planner: {replicaz: 2}", "pools: {default: {mim: 0}}"])
def test_a_value_that_the_chart_does_not_read_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(VALUES[0].read_text()) | yaml.safe_load(text)))

    assert "additional properties" in " ".join(lint(CHART, file))


def test_a_pool_needs_a_secret_and_nothing_else() -> None:
    small, scaled = (rendered(CHART, CHART / "ci" / f"{name}-values.yaml") for name in ("small", "certificates"))
    sets = {each["metadata"]["name"]: each["spec"] for each in by_kind(small, "StatefulSet")}
    bounds = {each["metadata"]["name"]: each["spec"] for each in by_kind(scaled, "ScaledObject")}

    assert "replicas" not in sets["refold-executor-mail"]
    bulk = bounds["refold-executor-bulk"]
    assert (bulk["minReplicaCount"], bulk["maxReplicaCount"]) == (1, 4)


def test_values_without_which_nothing_would_start_are_refused(tmp_path: Path) -> None:
    file, named = tmp_path / "values.yaml", "{app: a, gateway: {hosts: [a]}}"
    pool = "{app: a, gateway: {enabled: false}, pools: {a: {}}}"
    for lacks, text in (
        ("app: ", "image: shop"),
        ("gateway.hosts", "app: a"),
        ("people log in", named),
        ("pools.a.secret", pool),
    ):
        file.write_text(text)

        with pytest.raises(Exception, match=lacks):
            rendered(CHART, file)
