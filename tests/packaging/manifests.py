"""Objects of Kubernetes: rendered by Helm, and compared with schemas in which no field is too much."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema_rs
import kubernetes_validate
import pytest
import yaml

Object = dict[str, Any]

KUBERNETES = "1.35"
MODELS = {
    "keda.sh/v1alpha1": "cloudcoil.models.keda.v1alpha1",
    "monitoring.coreos.com/v1": "cloudcoil.models.prometheus_operator.v1",
}
"""Models that are generated from the custom resource definitions, by API."""

OPERATIONS = (
    *("Read", "Write", "Create", "Delete", "Alter", "Describe", "ClusterAction", "AlterConfigs", "DescribeConfigs"),
    *("IdempotentWrite", "All"),
)


def object_of(required: str = "", **fields: Any) -> Object:
    return {"type": "object", "required": required.split(), "properties": fields, "additionalProperties": False}


def list_of(items: Object) -> Object:
    return {"type": "array", "items": items}


def one_of(*values: str) -> Object:
    return {"enum": [*values]}


TEXT, COUNT = {"type": "string"}, {"type": "integer", "minimum": 1}
RESOURCE = object_of("type", type=one_of("topic", "group", "cluster", "transactionalId"), name=TEXT)
RESOURCE["properties"]["patternType"] = one_of("literal", "prefix")
RULE = object_of("resource operations", type=one_of("allow", "deny"), resource=RESOURCE, host=TEXT)
RULE["properties"]["operations"] = list_of(one_of(*OPERATIONS))
SPECS = {
    "KafkaTopic": object_of(topicName=TEXT, partitions=COUNT, replicas=COUNT, config={"type": "object"}),
    "KafkaUser": object_of(
        userName=TEXT,
        authentication=object_of("type", type=one_of("tls", "tls-external", "scram-sha-512")),
        authorization=object_of("acls type", acls=list_of(RULE), type=one_of("simple")),
        quotas=object_of(
            producerByteRate=COUNT, consumerByteRate=COUNT, requestPercentage=COUNT, controllerMutationRate=COUNT
        ),
    ),
}
"""Specifications of Strimzi's `kafka.strimzi.io/v1`, by kind, written by hand after the definitions of Strimzi 0.49: no
package has those."""


def problems(of: Object) -> list[str]:
    """Everything that the schema of an object refuses, unknown fields too."""
    if of["apiVersion"] in MODELS or of["apiVersion"] == "kafka.strimzi.io/v1":
        return [str(error) for error in schema(of["apiVersion"], of["kind"]).iter_errors(of)]
    try:
        kubernetes_validate.validate(of, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [str(error.message)]
    return []


@cache
def schema(api: str, kind: str) -> Any:
    """Validator of a custom resource. **Raises** KeyError or AttributeError for an unknown one."""
    metadata = {"type": "object", "required": ["name"]}
    if api not in MODELS:
        whole = object_of("spec", apiVersion=TEXT, kind=TEXT, metadata=metadata, spec=SPECS[kind])
    else:
        whole = getattr(import_module(MODELS[api]), kind).model_json_schema(by_alias=True)
        close(whole)
    return jsonschema_rs.validator_for(whole)


def close(node: Any) -> None:
    """Forbid fields that objects do not declare, as the API server does with strict validation."""
    if isinstance(node, dict):
        if "properties" in node and node.get("type") == "object":
            node.setdefault("additionalProperties", False)
        for each in node.values():
            close(each)
    elif isinstance(node, list):
        for each in node:
            close(each)


def rendered(chart: Path, values: Path) -> list[Object]:
    """Objects that Helm makes of a chart and a file of values. **Raises** HelmError."""
    helm = pytest.importorskip("helm_python", reason="Helm has no wheel for this platform")
    texts = helm.Chart.load(chart).render(helm.values_from_yaml(values.read_text()), name="refold", namespace="shop")
    return [each for text in texts.values() for each in yaml.safe_load_all(text) if each]


def lint(chart: Path, values: Path) -> list[str]:
    """Warnings and errors of Helm about a chart."""
    helm = pytest.importorskip("helm_python", reason="Helm has no wheel for this platform")
    report = helm.lint(chart, helm.values_from_yaml(values.read_text()), strict=True, namespace="shop")
    return [*(each["error"] for each in report["messages"] if each["severity"] > 1), *report["errors"]]
