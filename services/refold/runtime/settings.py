"""Settings from the environment: `REFOLD_KAFKA__BOOTSTRAP=broker:9092`. Read once, in the command line."""

from __future__ import annotations

import logging
import os
import re
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, IPvAnyNetwork, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from refold.core.errors import UsageError
from refold.core.planning.verdict import SIGNAL_BYTES
from refold.core.run.retry import REDISPATCH_MS
from refold.runtime import defaults

_log = logging.getLogger(__name__)  # programs load settings, too: nothing of this goes to their stdout

PREFIX = "REFOLD_"
PARTITIONS = "REFOLD_KAFKA__PARTITIONS"
NOT_SETTINGS = (
    *("REFOLD_CACHE", "REFOLD_DATA", "REFOLD_DEBUG", "REFOLD_FAULT_", "REFOLD_ROOT"),
    *("REFOLD_SECRET", "REFOLD_SOAK"),
)
"""Other variables of the environment: folders, the switch for tracebacks, faults, the file of the root key for
commands that sign, secrets, the test campaigns."""


_OF_A_SERVICE = re.compile(
    r"_(SERVICE_HOST=|SERVICE_PORT(_\w+)?=|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=|PORT=\w+://)", re.IGNORECASE
)
"""The end of a variable that Kubernetes sets for a service, a `_PORT` with its value: `REFOLD_PORT=tcp://10.0.0.1:80`."""


class _Room(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _for_ever_or_a_month(days: int) -> int:
    if days and days < 30:
        raise ValueError("it should be 0, or at least 30: what is repeated sooner has to be known")
    return days


Rates = dict[str, Annotated[int, Field(ge=1)]]


def _with_defaults(least: Rates, rates: Rates) -> Rates:
    return {**least, **rates}


def _as_librdkafka_writes(value: Any) -> Any:
    """A number or a truth value of JSON as librdkafka takes it: it knows nothing but text."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


class KafkaSettings(_Room):
    """Address and use of Kafka.

    `options` go to librdkafka as they are, for consumers, producers and admin calls: SASL, TLS, OAuth, tuning. What
    the product's promises rest on (acks, idempotence, commits, group) cannot be set there.
    """

    bootstrap: str = "127.0.0.1:9092"
    prefix: str = Field("refold.", pattern=r"^[A-Za-z0-9._-]{0,60}$")
    partitions: int = Field(4, ge=1, le=10_000)
    """Of every topic: one to two for each planner that there will ever be, as each that has something to say costs
    requests of its own. Choose it once, runs do not move between partitions. `refold dev` makes one."""
    replication: int | None = Field(None, ge=1)
    """None: 3, or as many as there are brokers when there are fewer."""
    session_timeout_ms: int = Field(10_000, ge=1_000)
    """The time the partitions of a dead process wait for it before others get them. Shorter throws out slow ones."""
    keep_place: bool = False
    """True if a process that is told to stop keeps its partitions for a restart under its name within the session.
    Without it others get them at once."""
    delivery_timeout_ms: int = Field(30_000, ge=1_000)
    """The time a write is tried again before its outcome counts as unknown. Covers the restart of a broker (3-11 s)."""
    linger_ms: float = Field(0.5, ge=0)
    """The time a write waits for company, in milliseconds. What a turn writes alone goes at once all the same."""
    sync: bool = False
    """Topics are made with `flush.messages=1`: every write is on disk before it is acknowledged."""
    options: dict[str, Annotated[str, BeforeValidator(_as_librdkafka_writes)]] = {}


class RedisSettings(_Room):
    """Where the ledger of effects is.

    **Units**: `retention_ms` is how long a finished call is remembered. It has to be longer than any command may
    come late; after it only the claim chain and the run log know the call.
    """

    url: str = "redis://127.0.0.1:6379/0"
    cluster: bool = False
    """The URL names nodes of a cluster (one, or several with commas); the others are found through them."""
    prefix: str = "refold"
    retention_ms: int = Field(7 * 86_400_000, ge=60_000)


class PlannerPart(_Room):
    """Decisions of the planner. **Units**: milliseconds; see `core.planning.verdict.Rules` and `planner.settings`."""

    redispatch_ms: int = Field(REDISPATCH_MS, ge=100)
    active_runs: int = Field(defaults.ACTIVE_RUNS, ge=1)
    """Runs of one partition that are with executors at once. Above it requests wait in their topic."""
    input_bytes: int = Field(defaults.INPUT_BYTES, ge=0)
    """Large inputs of runs of one partition that work: above it requests wait in their topic; and of those that wait
    for time, people or code: above it such requests are refused."""
    run_steps: int = Field(defaults.RUN_STEPS, ge=10)
    """Steps of one run; one that asks for more fails."""
    run_bytes: int = Field(defaults.RUN_BYTES, ge=10_000)
    """Bytes of the history of one run; one that has more fails."""
    live_bytes: int = Field(defaults.LIVE_BYTES, ge=0)
    """Bytes of executions of a planner between their steps; dropped ones are replayed when they go on."""
    signal_bytes: int = Field(SIGNAL_BYTES, ge=1_024)
    """Bytes of signals that one run keeps for waits to come; what more comes is dropped, and an event says so."""
    run_children: int = Field(defaults.RUN_CHILDREN, ge=0)
    """Runs that one run starts; one that starts more fails."""
    run_depth: int = Field(defaults.RUN_DEPTH, ge=0, le=9)
    """The largest number of runs above one that starts others; their ids have room for no more than nine."""
    hang_ms: int = Field(5_000, ge=100)
    """The time one run's code may hold the planner before the run is quarantined and the process ends."""


class ExecutorPart(_Room):
    """Actions of executors. **Units**: milliseconds; see `executor.settings`."""

    slots: int = Field(defaults.SLOTS, ge=1)
    lease_ms: int = Field(defaults.LEASE_MS, ge=100, le=3_600_000)
    chained_lease_ms: int = Field(defaults.CHAINED_LEASE_MS, ge=100, le=3_600_000)
    grace_ms: int = Field(defaults.GRACE_MS, ge=0)
    """The time tools that run may go on when the process is told to end. Nothing else waits for them."""
    blind_ms: int = Field(defaults.BLIND_MS, ge=1_000)
    """How old the reading of the catalog may be: beyond it nothing is done that needs a decision. What halts or revokes
    something comes with it."""
    conversation_bytes: int = Field(defaults.CONVERSATION_BYTES, ge=0)
    """Kept of conversations in memory, so that an order brings what is new alone. 0: each brings all of it."""
    approval: tuple[str, ...] = ()
    """Patterns of tools (`drop_*`) that never run without a decision here, besides those that declare it."""
    ledger_key: str = Field("", repr=False)
    """The key of the pool, 64 hexadecimal digits or a file that holds them: what Redis has counts only under it."""


class ApprovalPart(_Room):
    """Judgement of votes; `key` is the file of the key that signs decisions."""

    key: str = ""


class BlobsPart(_Room):
    """Where values over 64 KiB go: inputs, results, and what agents note."""

    url: str = ""
    """`file:///folder`, `s3://bucket/path`, `gs://`, `az://`. Empty: nowhere, and what is too large for the log fails.
    Services and who starts runs need the same."""
    max_bytes: int = Field(defaults.BLOB_BYTES, ge=65_536)
    """The longest value, as JSON text. An executor and a planner hold one some four times in memory."""


class ArchivePart(_Room):
    """When runs that are over leave the topics, and where they go. **Units**: milliseconds."""

    url: str = ""
    """`file:///folder`, `s3://bucket/path` and what else obstore knows. Empty: none is named."""
    retention_ms: int = Field(defaults.RETENTION_MS, ge=0)
    """Since the end of a run. An agent may have another: `@app.agent(retention=...)`."""
    horizon_days: Annotated[int, AfterValidator(_for_ever_or_a_month)] = 0
    """Since the end of an erased run: how long its id stays known. 0: for ever. A request that is repeated later starts
    a new run."""
    every_ms: int = Field(3_600_000, ge=100)
    """The time the archivist waits between two passes; each reads the whole run log."""


class ViewsPart(_Room):
    """Where the tables of projections are."""

    url: str = ""
    """`sqlite:///folder/views.db` or `postgresql://user@host/database`. Empty: nowhere."""
    run_view: bool = False
    """Write the rows of `runs` to the topic `run-view` too."""


class MetricsPart(_Room):
    """Where a process shows its metrics and its health."""

    address: str = ""
    """A port of this machine, or `0.0.0.0:9464`. Each process of a machine needs one of its own. Empty: nowhere."""


class TelemetryPart(_Room):
    """Where traces go. The SDK's own `OTEL_EXPORTER_OTLP_*` say how: headers, certificate, compression."""

    endpoint: str = ""
    """`https://collector:4318/v1/traces`. Empty: what the SDK's variables say, or this machine."""
    content: bool = False
    """Arguments and results are attributes of spans, redacted as in logs."""


class OidcPart(_Room):
    """Whose tokens the gateway takes. `actor` and `roles` name claims, one inside another as `realm_access.roles`."""

    issuer: str = ""
    """The `iss` of tokens. Empty: none are taken."""
    audience: str = ""
    jwks: str = ""
    """The URL of the issuer's keys, `jwks_uri` of its configuration."""
    actor: str = "sub"
    roles: str = "roles"


class ProxyPart(_Room):
    """The proxy whose word the gateway takes for who somebody is."""

    actor: str = ""
    """The header with the name, such as `X-Forwarded-User`. Empty: there is no such proxy."""
    roles: str = "X-Forwarded-Groups"
    """The header with the roles, with commas."""
    secret: str = Field("", repr=False)
    """In its header `Refold-Proxy-Secret`: 64 hexadecimal digits, or a file that holds them."""
    peers: tuple[IPvAnyNetwork, ...] = ()
    """Addresses that it connects from, `10.0.0.0/24`."""


class GatewayPart(_Room):
    """Where the gateway listens, and who may ask. Without keys, issuer or proxy one user of this machine may."""

    host: str = "127.0.0.1"
    port: int = Field(8321, ge=1, le=65_535)
    hosts: tuple[str, ...] = ()
    """Names by which it is reached, besides those of this machine."""
    writes: Annotated[Rates, AfterValidator(partial(_with_defaults, defaults.GATEWAY_WRITES))] = defaults.GATEWAY_WRITES
    """Writes a minute of a `person` (cookie, proxy), a `program` (API key, token), a role, or an API key by its prefix:
    the one that names the login best."""
    reads: Annotated[Rates, AfterValidator(partial(_with_defaults, defaults.GATEWAY_READS))] = defaults.GATEWAY_READS
    """Reads a minute, likewise."""
    api_keys: str = ""
    """The file of API keys."""
    oidc: OidcPart = OidcPart()
    proxy: ProxyPart = ProxyPart()
    roles: dict[str, str] = {}
    """Roles of the issuer and the proxy, and what they are here: `{"sre": "operator"}`."""
    session_key: str = Field("", repr=False)
    """The key that signs the cookies of all gateways: 64 hexadecimal digits, or a file. Empty: this process's own."""
    vote_key: str = ""
    """The file of the key that signs votes. Empty: the only one in the data folder."""
    people: dict[str, str] = {}
    """Persons whom the pages may act as, with the file of each one's vote key. `refold dev` alone sets it."""
    request_key: str = ""
    """The file of the key that signs who asks for runs. Empty: the only one in the data folder, if there is one."""


class Settings(BaseSettings):
    """Everything that is set from outside."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", env_ignore_empty=True, frozen=True, extra="forbid"
    )

    environment: str = Field("dev", min_length=1, max_length=100)
    """Part of every idempotency key, so that a test system and the real one never share an effect."""
    max_payload_bytes: int = Field(defaults.PAYLOAD_BYTES, ge=1_024, le=64 << 20)
    """The longest input, argument or result, as JSON text."""
    trust: str = ""
    """The public root keys that sign the catalog: `KID:X`, several with commas, or `@FILE` with that."""
    allow_open: bool = False
    """True if services start beside a Kafka or a Redis that lets everybody do everything, off this machine, too."""
    member: str = ""
    """The name of a process in its group, by default service and host. No fence for anything."""
    kafka: KafkaSettings = KafkaSettings()
    redis: RedisSettings = RedisSettings()
    planner: PlannerPart = PlannerPart()
    executor: ExecutorPart = ExecutorPart()
    approval: ApprovalPart = ApprovalPart()
    archive: ArchivePart = ArchivePart()
    blobs: BlobsPart = BlobsPart()
    views: ViewsPart = ViewsPart()
    metrics: MetricsPart = MetricsPart()
    telemetry: TelemetryPart = TelemetryPart()
    gateway: GatewayPart = GatewayPart()

    @property
    def platform(self) -> str:
        """Scope of signatures of root keys and requesters: `production/refold.`, environment and prefix of topics."""
        return f"{self.environment}/{self.kafka.prefix}"


def load(**overrides: Any) -> Settings:
    """The settings of this process; `overrides` (of the command line) win over the environment.

    **Raises** UsageError for an unknown REFOLD_ name and for a value that cannot be.
    """
    known = {name.upper() for name in Settings.model_fields}
    for name, value in os.environ.items():
        if name.upper().startswith(PREFIX) and not name.startswith(NOT_SETTINGS):
            room = name.upper().removeprefix(PREFIX).partition("__")[0]
            if _OF_A_SERVICE.search(f"{name}={value}"):
                _log.debug("%s is set by Kubernetes for a service", name)
            elif room not in known:
                raise UsageError(f"{name} is not a setting of Refold", hint=f"the rooms are {', '.join(sorted(known))}")
    try:
        return Settings(**overrides)
    except (ValidationError, ValueError) as error:
        raise UsageError(f"a setting is not valid: {_explain(error)}", hint="correct it in the environment") from None


def _explain(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)[:300]
    return "; ".join(f"{PREFIX}{'__'.join(str(p) for p in e['loc']).upper()}: {e['msg']}" for e in error.errors())
