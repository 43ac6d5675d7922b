"""docker-compose.yml mirrors the embedded stack; no engine is needed to see that."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from refold.cli.apps import app_pools
from refold.cli.commands import COMMANDS
from refold.cli.commands.dev import dev_services
from refold.cli.commands.provision import Provision
from refold.core.defaults import GRACE_MS
from refold.core.wire.resources import resource
from refold.dev.kafka import server_properties
from refold.dev.ports import free_port
from refold.dev.valkey import EmbeddedValkey
from refold.engine.runtime.gauges import Vitals
from refold.engine.runtime.metrics import shown
from refold.engine.runtime.settings import load

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "infra" / "Dockerfile").read_text().replace("\\\n", " ")
SERVERS = ("kafka", "valkey", "collector", "prometheus", "grafana")
OTHERS = (*SERVERS, "cloud")
"""Services that are not of the product."""
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

    # After kill -9 Docker starts a broker that waits for the session of the dead one: `refold dev` ends that session.
    assert int(environment["KAFKA_BROKER_SESSION_TIMEOUT_MS"]) <= 6_000
    for key in embedded.keys() - ADDRESSES - {"broker.session.timeout.ms"}:
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


def test_every_service_of_the_stack_has_a_block_with_its_command_and_settings(services: dict[str, Any]) -> None:
    own = {"trust": Path("/app/trust/root.pub"), "decision": Path("/app/decisions/decision.json")}
    needs = Provision(("default",), Path("/unused"), own={**own, "ledger": Path("/app/ledger/ledger.key")})
    started = dev_services("${APP:-apps/deploy.py}", needs)
    stack = [each for each in started if each.name not in ("projections", "gateway")]

    assert [service.name for service in stack] == ["planner", "approval", "executor"]
    for service in stack:
        assert services[service.name]["command"] == list(service.argv[3:])
        assert services[service.name]["environment"].items() >= service.env.items()


def test_projections_and_gateway_share_a_view_and_the_image_has_what_they_need(services: dict[str, Any]) -> None:
    install = next(line for line in DOCKERFILE.splitlines() if "-r pyproject.toml" in line)
    blocks = [services[name] for name in ("projections", "gateway")]

    (extras,) = re.findall(r"--extra %s' ([\w ]+) \$EXTRAS", install)
    assert {*extras.split()} == {"archive", "gateway", "insights", "metrics", "postgres", "telemetry", "views"}
    assert [block["command"][:2] for block in blocks] == [["serve", "projections"], ["serve", "gateway"]]
    (url,) = {block["environment"]["REFOLD_VIEWS__URL"] for block in blocks}
    assert url.removeprefix("sqlite:///").startswith("/app/views/")
    assert all("views:/app/views" in block["volumes"] for block in blocks)
    # It has no login: were it in a network of containers, its port could not be the loopback's alone.
    assert services["gateway"]["network_mode"] == "host"
    assert "--host" not in services["gateway"]["command"]
    assert "REFOLD_GATEWAY__HOST" not in services["gateway"]["environment"]
    assert services["gateway"]["environment"]["REFOLD_METRICS__ADDRESS"] == ""


def test_every_variable_of_a_container_is_a_setting(services: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, block in services.items():
        if name not in OTHERS:
            with monkeypatch.context() as patch:
                for variable, value in block["environment"].items():
                    patch.setenv(variable, re.sub(r"\$\{\w+:-([^}]*)}", r"\1", value))
                set_there = load()

            assert set_there.allow_open, name
            assert set_there.kafka.bootstrap == ("127.0.0.1:9092" if name == "gateway" else "kafka:19092")


def test_every_volume_of_a_container_lies_on_a_folder_of_the_image_that_its_user_owns(services: dict[str, Any]) -> None:
    # The engine makes a folder that the image does not have, for root: nothing there could be written.
    user, owned = re.findall(r"useradd .* (\w+)\s+&& install -d -o (\w+) -m 700 (.*)", DOCKERFILE), set[str]()
    for name, owner, folders in user:
        assert name == owner
        owned = {*folders.split()}
    assert f"USER {user[0][0]}" in DOCKERFILE.splitlines()

    mounted = {
        volume.split(":")[1]
        for name, block in services.items()
        for volume in block.get("volumes", ())
        if name not in OTHERS and volume[0] not in ".$"
    }

    assert mounted == owned


def test_each_key_is_where_it_is_used_and_nowhere_else(services: dict[str, Any]) -> None:
    holders = {
        key: {
            name: volume.endswith(":ro")
            for name, block in services.items()
            for volume in block.get("volumes", ())
            if volume.startswith(f"{key}:")
        }
        for key in ("root", "decisions", "votes", "ledger")
    }

    assert holders == {
        "root": {"setup": False, "admin": True},
        "decisions": {"setup": False, "approval": True},
        "votes": {"setup": False, "gateway": True},
        "ledger": {"setup": False, "executor": True, "models": True},
    }
    paths = services["setup"]["environment"]
    assert paths["REFOLD_TRUST"] == "@/app/trust/root.pub"
    assert all(
        "trust:/app/trust:ro" in services[name]["volumes"] for name in services if name not in (*OTHERS, "setup")
    )


def test_one_service_builds_the_image_that_all_others_use(services: dict[str, Any]) -> None:
    builds = {name: block["build"] for name, block in services.items() if "build" in block}

    assert [*builds] == ["setup"]
    assert (ROOT / builds["setup"]["dockerfile"]).is_file()
    assert {*builds["setup"]["args"]} == {*re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE)}
    assert len({block["image"] for name, block in services.items() if name not in SERVERS}) == 1


def test_every_service_has_a_check_of_its_health(services: dict[str, Any]) -> None:
    unchecked = {name for name, block in services.items() if "test" not in block.get("healthcheck", {})}

    assert unchecked == {"setup", "admin", "collector"}, "two commands, and an image that has nothing to ask with"
    assert all(services[name]["healthcheck"] == {"disable": True} for name in unchecked)
    for name in ("planner", "approval", "executor", "projections", "telemetry", "insights"):
        port = services[name]["environment"]["REFOLD_METRICS__ADDRESS"].rpartition(":")[2]
        # A projector beside a gateway that keeps the views is never ready.
        assert services[name]["healthcheck"]["test"][-2:] == [port, "/livez" if name == "projections" else "/readyz"]
    assert services["gateway"]["healthcheck"]["test"][-2:] == ["${PORT:-8321}", "/readyz"]


def test_a_check_of_health_is_what_the_service_answers(services: dict[str, Any]) -> None:
    vitals, port = Vitals(), str(free_port())
    *_, script, _, path = services["planner"]["healthcheck"]["test"]
    check = ["bash", "-c", script.replace("$$", "$"), port, path]

    before = subprocess.run(check, capture_output=True, timeout=30)
    with shown(port, {"planner": vitals}, (), ends=lambda _: {}):
        unready = subprocess.run(check, capture_output=True, timeout=30)
        vitals.stand("")
        ready = subprocess.run(check, capture_output=True, timeout=30)

    assert (before.returncode != 0, unready.returncode != 0, ready.returncode) == (True, True, 0), ready.stderr


def test_each_pool_of_an_example_has_an_executor(services: dict[str, Any]) -> None:
    pools = {block["command"][-1] for block in services.values() if "--pool" in block.get("command", ())}

    assert pools == {*app_pools(str(ROOT / "examples" / "incident" / "app.py"))}


def test_a_container_is_stopped_after_the_grace_of_its_tools(services: dict[str, Any]) -> None:
    assert int(services["executor"]["stop_grace_period"].removesuffix("s")) * 1_000 > GRACE_MS


def test_the_app_by_default_is_an_example(services: dict[str, Any]) -> None:
    (mounted,) = {each for block in services.values() for each in block.get("volumes", ()) if "APPS" in each}
    apps, there, mode = re.fullmatch(r"\$\{APPS:-([^}]+)}:(\S+):(ro)", mounted).groups()  # type: ignore[union-attr]
    (app,) = {each for block in services.values() for each in block.get("command", ()) if "APP:-" in each}

    assert (there, mode) == ("/app/apps", "ro")
    assert (ROOT / apps / app.removeprefix("${APP:-apps/").removesuffix("}")).is_file()


def test_the_commands_of_the_comments_exist(services: dict[str, Any]) -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    used = re.findall(r"docker compose (?:exec|run --rm) (\w+) ([^`\n]*)", text)
    known = {" ".join(words) for words, _ in COMMANDS.walk()}

    assert {service for service, _ in used} == {"planner", "admin"} <= services.keys()
    for _, words in used:
        line = words.removeprefix("refold ").split()
        assert known & {" ".join(line[:n]) for n in (1, 2)} or line == ["..."], words
    variables = {*re.findall(r"\$\{(\w+):-", text)} - {"USER"}
    comment = text.partition("name: refold")[0]
    assert [name for name in variables if not re.search(rf"\b{name}\b", comment)] == []


def test_the_profile_that_observes_scrapes_every_service_and_shows_the_board(services: dict[str, Any]) -> None:
    scraped = yaml.safe_load(resource("infra", "observe/prometheus.yaml").read_text())["scrape_configs"][0]
    targets = scraped["static_configs"][0]["targets"]
    observing = {name: block for name, block in services.items() if block.get("profiles") == ["observe"]}

    assert observing.keys() == {"projections", "telemetry", "collector", "prometheus", "grafana"}
    for name, port in (target.split(":") for target in targets):
        assert services[name]["environment"]["REFOLD_METRICS__ADDRESS"] == f"0.0.0.0:{port}"
    shows = {name for name in services if services[name].get("environment", {}).get("REFOLD_METRICS__ADDRESS")}
    assert shows - {"setup", "admin", "insights", "models"} == {target.partition(":")[0] for target in targets}
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
    assert "insights:/app/insights" in block["volumes"]
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
