"""Names, types and values are those of the conventions; board and rules are well formed, and ask for what there is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from refold.client.reading.member import WorkerGroup, Workers
from refold.console.projections.metrics import ViewMetrics
from refold.console.telemetry import names
from refold.console.telemetry.spans import Style
from refold.core.errors import UnreachableError
from refold.core.ids import RunId
from refold.core.wire.resources import resource
from refold.dev.ports import free_port
from refold.engine.runtime.alarms import ALARMS
from refold.engine.runtime.gauges import Vitals
from refold.engine.runtime.metrics import shown
from tests.planner.clocked import Rig
from tests.telemetry.queries import board, expressions, metrics_of, queried, rules
from tests.telemetry.receiver import Receiver
from tests.telemetry.test_metrics import ask, viewed
from tests.telemetry.test_spans import GEN_AI, World, chats, of, ran

ROOT = Path(names.__file__).parents[2]
OPERATING = ROOT.parents[1] / "docs" / "guides" / "operating.md"
REGISTRY: dict[str, Any] = json.loads(Path(__file__).with_name("gen_ai.json").read_text())
TYPES = {"string": str, "int": int, "double": float, "boolean": bool, "any": str, "enum": str}


def strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [*value] if isinstance(value, tuple) else [*value, *value.values()] if isinstance(value, dict) else []


def test_every_name_that_is_written_down_is_one_of_the_conventions_and_the_commit_is_the_same() -> None:
    public = [value for name, value in vars(names).items() if not name.startswith("_")]
    ours = {each for value in public for each in strings(value) if each.startswith("gen_ai.")}

    assert len(ours) > 15
    assert ours - set(REGISTRY["types"]) == set()
    assert set(names.PROVIDERS.values()) <= set(REGISTRY["members"]["gen_ai.provider.name"])
    assert REGISTRY["commit"] in (names.__doc__ or "")


def test_every_attribute_that_is_exported_has_the_type_and_a_value_of_the_conventions() -> None:
    with Receiver() as receiver:
        World(receiver=receiver, style=Style(gen_ai=True, content=str)).told(*of(ran("shopper", {"what": "hats"})))
        plan = {"steps": [{"name": "a", "tool": "look", "args": {"what": "x"}}]}
        World(receiver=receiver, style=GEN_AI).told(*of(ran("plan", plan, "p-1")), *chats({}))
    said = {(name, value) for span in receiver.spans for name, value in span.said.items()}
    exported = {name for name, _ in said}

    assert {span.name.split()[0] for span in receiver.spans} == {
        names.CHAT,
        names.EXECUTE_TOOL,
        names.INVOKE_AGENT,
        names.INVOKE_WORKFLOW,
    }
    for name, value in said:
        if name.startswith("gen_ai."):
            assert type(value) is TYPES[REGISTRY["types"][name]], name
        else:
            assert name.startswith("refold.") or name == names.ERROR_TYPE
    for name in REGISTRY["members"].keys() & exported - {names.PROVIDER}:
        assert {value for each, value in said if each == name} <= set(REGISTRY["members"][name])
    assert len(exported) > 15
    assert RunId("r-1") in {value for name, value in said if name == names.SPAN_RUN}


def test_panels_and_rules_are_expressions_that_can_be_read() -> None:
    assert len(list(expressions())) > 30
    for text in expressions():
        assert metrics_of(text), text
    assert all(name.startswith("refold_") for name in queried())


@pytest.mark.parametrize("wrong", ["rate(a[5m]", "sum by (a) b c", "a{b=c}", "a ==", "rate(a[5x])", "sum)", "a{b='c'}"])
def test_what_is_no_expression_is_found(wrong: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        metrics_of(wrong)


def test_a_rule_says_what_is_the_matter_and_what_comes_next() -> None:
    found = rules()

    assert len({rule["alert"] for rule in found}) == len(found)
    for rule in found:
        assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}, rule
        assert rule["annotations"].keys() == {"summary", "next", "runbook"}
        assert rule["annotations"]["runbook"] == f"docs/guides/operating.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("warning", "critical")


def exported(*beside: ViewMetrics) -> dict[str, float]:
    """What a process shows, by name and labels."""
    with shown(str(port := free_port()), {"planner": Vitals()}, beside, ends=lambda _: {}):
        return {
            of.name: of.value
            for each in text_string_to_metric_families(ask(port, "/metrics")[1])
            for of in each.samples
        }


def group(role: str, *, members: int) -> WorkerGroup:
    """A group as a projector sees it."""
    unserved = [] if members else [0]
    lag = {"run-log": 1}
    return WorkerGroup(
        role=role, pool="", members=members, unserved=unserved, needed=True, waiting=1, oldest_s=9.0, lag=lag
    )


def test_every_metric_that_a_rule_asks_for_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    views = viewed(monkeypatch, 1)
    vars(views).update(_ask=lambda: Workers(groups=[group("planner", members=0)], workers=[]))
    there = exported(views)

    assert {name for rule in rules() for name in metrics_of(rule["expr"])} - there.keys() == set()
    assert (there["refold_partitions_unserved"], there["refold_workers"]) == (1, 0)
    assert (there["refold_oldest_waiting_seconds"], there["refold_kafka_unreachable"]) == (9, 0)


def test_a_platform_that_shows_nothing_fires_an_alert_and_one_whose_kafka_is_away_does_not_call_its_views_unreadable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (absent,) = (rule["expr"] for rule in rules() if rule["expr"].startswith("absent("))
    views = viewed(monkeypatch, 1)

    def away() -> Workers:
        raise UnreachableError("Kafka is away")

    vars(views).update(_ask=away)
    there = exported(views)

    assert metrics_of(absent) <= there.keys(), "it would fire while the process that shows the others lives"
    assert (there["refold_kafka_unreachable"], there["refold_views_unreadable"]) == (1, 0)
    assert "refold_partitions_unserved" not in there, "nobody knows"


def test_a_request_with_a_typo_is_no_critical_alarm_and_every_alarm_is_one_that_a_service_raises() -> None:
    rig = Rig()
    rig.start("r-1", "lookign", {})
    rig.run()
    names = [name for name, _ in rig.news]
    source = "".join(path.read_text() for path in ROOT.rglob("*.py") if path.name != "alarms.py")

    assert "run.unserved" in names
    assert ALARMS["run.unserved"].severity == "info"
    assert "run.stalled" not in names
    assert [name for name in ALARMS if f'"{name}"' not in source] == []
    assert {alarm.severity for alarm in ALARMS.values()} == {"critical", "warning", "info"}


def test_the_table_of_the_docs_is_that_of_the_code() -> None:
    causes: dict[tuple[str, str], list[str]] = {}
    for name, alarm in ALARMS.items():
        causes.setdefault((alarm.severity, alarm.action), []).append(f"`{name}`: {alarm.cause}")
    rows = [f"| {'; '.join(each)} | {severity} | {action} |" for (severity, action), each in causes.items()]
    table = "\n".join(("| event | severity | what to do |", "|---|---|---|", *rows))
    text = OPERATING.read_text()
    if os.environ.get("REFOLD_WRITE_OUTPUTS"):
        begin, end = text.index("| event |"), text.index("\n\n", text.index("| event |"))
        text = text[:begin] + table + text[end:]
        OPERATING.write_text(text)

    assert table in text, "REFOLD_WRITE_OUTPUTS=1 writes it"
    headings = {
        f"docs/guides/operating.md#{line[5:].lower()}" for line in text.splitlines() if line.startswith("#### ")
    }
    assert {rule["annotations"]["runbook"] for rule in rules()} <= headings


def test_the_board_is_of_the_classic_model_and_asks_the_data_source_that_is_chosen() -> None:
    found = board()
    places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in found["panels"]]

    assert (found["uid"], found["schemaVersion"]) == ("refold", 39)
    assert found["templating"]["list"][0]["type"] == "datasource"
    assert {each["datasource"]["uid"] for each in found["panels"] if "datasource" in each} == {"${datasource}"}
    assert len(set(places)) == len(places), "two panels lie in one place"
    assert len({each["id"] for each in found["panels"]}) == len(found["panels"])


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not there; our own reader has read the rules")
def test_promtool_takes_the_rules(tmp_path: Path) -> None:
    path = tmp_path / "alerts.yaml"
    path.write_text(resource("infra", "alerts.yaml").read_text())
    subprocess.run(["promtool", "check", "rules", str(path)], check=True)
