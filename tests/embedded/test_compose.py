"""docker-compose.yml mirrors the embedded stack; no engine is needed to see that."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from refold.cli.commands.dev import dev_services
from refold.cli.commands.provision import Provision
from refold.core.wire.resources import resource
from refold.embedded.properties import server_properties
from refold.embedded.valkey import EmbeddedValkey

ROOT = Path(__file__).parents[2]
# Where the containers live differs; how the one node behaves must not.
ADDRESSES = {
    "advertised.listeners",
    "controller.quorum.bootstrap.servers",
    "listener.security.protocol.map",
    "listeners",
    "log.dirs",
}


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """Give the service blocks of the compose file."""
    blocks: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    return blocks


def test_the_broker_has_the_settings_of_the_embedded_one(services: dict[str, Any]) -> None:
    environment = services["kafka"]["environment"]
    text = server_properties(Path("unused"), port=1, controller_port=2, extra={})
    embedded = dict(line.split("=", 1) for line in text.splitlines())

    for key in embedded.keys() - ADDRESSES:
        assert environment["KAFKA_" + key.upper().replace(".", "_")] == embedded[key], key


def test_the_broker_is_the_version_of_the_locked_jars(services: dict[str, Any]) -> None:
    locked = re.search(r"org\.apache\.kafka:kafka_2\.13:(\S+)", resource("infra", "jars.lock").read_text())

    assert locked is not None
    assert services["kafka"]["image"] == f"apache/kafka:{locked[1]}"


def test_valkey_is_as_durable_as_the_embedded_one(services: dict[str, Any], tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path)
    server.prepare()
    conf = dict(line.split(" ", 1) for line in (tmp_path / "valkey.conf").read_text().splitlines())
    _, *command = services["valkey"]["command"]

    options = dict(zip(command[::2], command[1::2], strict=True))

    assert len(options) == 4
    assert {key.removeprefix("--"): f'"{value}"' for key, value in options.items()}.items() <= conf.items()


def test_every_service_of_the_stack_has_a_block_with_its_command(services: dict[str, Any]) -> None:
    needs = Provision(("default",), Path("/app/.refold/keys"))
    started = dev_services("${APP:-examples/deploy.py}", needs)
    stack = [each for each in started if each.name not in ("projections", "gateway")]

    assert [service.name for service in stack] == ["planner", "approval", "executor"]
    for service in stack:
        block = services[service.name]
        assert block["command"] == list(service.argv[3:])
        there = {"REFOLD_KAFKA__BOOTSTRAP", "REFOLD_REDIS__URL", "REFOLD_ALLOW_OPEN", "REFOLD_METRICS__ADDRESS"}
        assert block["environment"].keys() == {*there, *service.env}
        assert not any(volume.startswith("root:") for volume in block["volumes"])
        assert (ROOT / block["build"]["dockerfile"]).is_file()


def test_projections_and_gateway_share_a_view_and_the_image_has_what_they_need(services: dict[str, Any]) -> None:
    install = next(
        line
        for line in resource("infra", "Dockerfile").read_text().replace("\\\n", " ").splitlines()
        if "-r pyproject.toml" in line
    )
    blocks = [services[name] for name in ("projections", "gateway")]

    extras = {"gateway", "insights", "metrics", "postgres", "telemetry", "views"}
    assert set(re.findall(r"--extra (\w+)", install)) == extras
    assert [block["command"][:2] for block in blocks] == [["serve", "projections"], ["serve", "gateway"]]
    (url,) = {block["environment"]["REFOLD_VIEWS__URL"] for block in blocks}
    assert url.removeprefix("sqlite:///").startswith("/app/views/")
    assert all("views:/app/views" in block["volumes"] for block in blocks)
    assert "/app/views" in resource("infra", "Dockerfile").read_text()
    # It asks nobody who they are: were it in a network of containers, its port could not be the loopback's alone.
    assert services["gateway"]["network_mode"] == "host"
    assert "--host" not in services["gateway"]["command"]
    assert "REFOLD_GATEWAY__HOST" not in services["gateway"]["environment"]


def test_the_profile_that_observes_scrapes_every_service_and_shows_the_board(services: dict[str, Any]) -> None:
    scraped = yaml.safe_load(resource("infra", "observe/prometheus.yaml").read_text())["scrape_configs"][0]
    targets = scraped["static_configs"][0]["targets"]
    observing = {name: block for name, block in services.items() if block.get("profiles") == ["observe"]}

    assert observing.keys() == {"telemetry", "collector", "prometheus", "grafana"}
    for name, port in (target.split(":") for target in targets):
        assert services[name]["environment"]["REFOLD_METRICS__ADDRESS"] == f"0.0.0.0:{port}"
    assert {name for name, block in services.items() if "REFOLD_METRICS__ADDRESS" in block.get("environment", {})} - {
        "root",
        "setup",
    } == {target.partition(":")[0] for target in targets}
    files = [volume.split(":")[0] for block in observing.values() for volume in block["volumes"]]
    assert all((ROOT / file).exists() for file in files if file.startswith("./"))
    assert observing["telemetry"]["environment"]["REFOLD_TELEMETRY__ENDPOINT"].startswith("http://collector:4318/")
    receives = yaml.safe_load(resource("infra", "observe/collector.yaml").read_text())
    assert receives["receivers"]["otlp"]["protocols"]["http"]["endpoint"].endswith(":4318")


def test_insights_have_a_state_of_their_own_and_no_other_service_waits_for_them(services: dict[str, Any]) -> None:
    block = services["insights"]

    assert block["command"][:3] == ["serve", "insights", "--state"]
    assert block["profiles"] == ["insights"]
    assert block["command"][3].removeprefix("sqlite:///").startswith("/app/insights/")
    assert block["volumes"] == ["insights:/app/insights"]
    assert "/app/insights" in resource("infra", "Dockerfile").read_text()
    assert not [name for name, each in services.items() if "insights" in each.get("depends_on", ())]


def test_everything_is_published_on_the_loopback_interface_only(services: dict[str, Any]) -> None:
    published = [port for block in services.values() for port in block.get("ports", [])]

    assert len(published) == 3
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_the_image_copies_only_what_is_in_the_repository() -> None:
    lines = resource("infra", "Dockerfile").read_text().splitlines()
    copies = [line.split()[1:-1] for line in lines if line.startswith("COPY") and "--from" not in line]

    assert copies
    assert all((ROOT / name).exists() for names in copies for name in names)


def test_the_image_installs_nothing_that_the_lock_has_no_hash_of() -> None:
    text = resource("infra", "Dockerfile").read_text().replace("\\\n", " ")
    installs = [
        step.strip()
        for line in text.splitlines()
        if line.startswith("RUN")
        for step in line.removeprefix("RUN").split("&&")
        if re.search(r"\bpip (install|wheel)\b", step)
    ]

    assert installs
    assert all("--require-hashes" in step or {"--no-index", "--no-deps"} <= {*step.split()} for step in installs)


def test_the_lock_has_hashes_of_all_that_builds_the_image() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    text = resource("infra", "Dockerfile").read_text()
    names = re.search(r"\^\(([\w|-]+)\)==", text)
    assert names, "the image takes its builder from the lock"

    backend = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    builds = {*names[1].split("|"), "uv"}
    for name in builds:
        assert re.search(rf"^{name}==\S+ \\\n    --hash=sha256:[0-9a-f]{{64}}", lock, re.MULTILINE), name
    needed = {re.split(r"[^\w-]", each)[0] for each in backend}
    while added := {needs for name in needed for needs in _needs(name)} - needed:
        needed |= added
    assert needed <= builds


def _needs(name: str) -> set[str]:
    wanted = importlib.metadata.requires(name) or []
    return {
        re.split(r"[^\w-]", each)[0] for each in wanted if "extra ==" not in each and "python_version <" not in each
    }
