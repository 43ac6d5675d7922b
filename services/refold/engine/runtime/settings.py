"""Settings from the environment, such as `REFOLD_KAFKA__BOOTSTRAP=broker:9092`; read once, in the command line."""

import logging
import os
import re
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, IPvAnyNetwork, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from refold.core import defaults
from refold.core.errors import UsageError
from refold.core.planning.matrix import REDISPATCH_MS
from refold.core.planning.verdict import SIGNAL_BYTES

_log = logging.getLogger(__name__)  # programs load settings, too: nothing of this goes to their stdout

PREFIX = "REFOLD_"
PARTITIONS = "REFOLD_KAFKA__PARTITIONS"
LIGHT = "unix://"
"""Bootstrap address of a `refold dev --light`: the path of its socket follows."""
NOT_SETTINGS = (
    *("REFOLD_CACHE", "REFOLD_DATA", "REFOLD_DEBUG", "REFOLD_FAULT_", "REFOLD_ROOT"),
    *("REFOLD_SECRET", "REFOLD_SOAK"),
)
"""Other variables with the prefix: folders, tracebacks, faults, secrets, test campaigns."""

_OF_A_SERVICE = re.compile(
    r"_(SERVICE_HOST=|SERVICE_PORT(_\w+)?=|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=|PORT=\w+://)", re.IGNORECASE
)
"""Ending of a variable that Kubernetes sets for a service: `REFOLD_PORT=tcp://10.0.0.1:80`."""


class _SettingsPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _for_ever_or_a_month(days: int) -> int:
    if days and days < 30:
        raise ValueError("it should be 0, or at least 30: what is repeated sooner has to be known")
    return days


Rates = dict[str, Annotated[int, Field(ge=1)]]


def _with_defaults(least: Rates, rates: Rates) -> Rates:
    return {**least, **rates}


def _as_librdkafka_writes(value: Any) -> Any:
    """Convert numbers and booleans of JSON to text: librdkafka takes nothing else."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


class KafkaSettings(_SettingsPart):
    """Address and use of Kafka.

    `options` go to librdkafka as they are, for consumers, producers and admin calls: SASL, TLS, OAuth, tuning. Options
    that correctness depends on (acks, idempotence, commits, group) are refused."""

    bootstrap: str = "127.0.0.1:9092"
    prefix: str = Field("refold.", pattern=r"^[A-Za-z0-9._-]{0,60}$")
    partitions: int = Field(4, ge=1, le=10_000)
    """Partitions of every topic: one to two for each planner that there will ever be, since each active one costs
    requests. Choose it once: runs do not move between partitions. `refold dev` makes one."""
    replication: int | None = Field(None, ge=1)
    """None: 3, or the number of brokers if there are fewer."""
    session_timeout_ms: int = Field(10_000, ge=1_000)
    """Time until the partitions of a dead process go to others. If it is short, slow processes lose theirs."""
    keep_place: bool = False
    """Keep the partitions of a stopping process for its restart under the same name, within the session. Otherwise
    others get them at once."""
    delivery_timeout_ms: int = Field(30_000, ge=1_000)
    """Time of repeated tries of a write before its outcome counts as unknown; longer than a broker's restart (3-11 s).
    """
    linger_ms: float = Field(0.5, ge=0)
    """Time in milliseconds that a write waits for others; the few writes of a small turn do not wait."""
    sync: bool = False
    """Create topics with `flush.messages=1`: every write is on disk before it is acknowledged."""
    options: dict[str, Annotated[str, BeforeValidator(_as_librdkafka_writes)]] = {}

    @property
    def light(self) -> bool:
        return self.bootstrap.startswith(LIGHT)


class RedisSettings(_SettingsPart):
    """Address of the ledger of effects.

    **Units**: `retention_ms` is the time that finished calls are remembered; longer than any command may be late. After
    it only the claim chain and the run log have the call."""

    url: str = "redis://127.0.0.1:6379/0"
    cluster: bool = False
    """The URL names nodes of a cluster (separated by commas); they lead to the others."""
    prefix: str = "refold"
    retention_ms: int = Field(7 * 86_400_000, ge=60_000)


class PlannerPart(_SettingsPart):
    """Decisions of the planner. **Units**: milliseconds; see `core.planning.verdict.Rules` and
    `engine.planner.settings`."""

    redispatch_ms: int = Field(REDISPATCH_MS, ge=100)
    active_runs: int = Field(defaults.ACTIVE_RUNS, ge=1)
    """Active runs (with calls at executors) of one partition. Above it requests wait in their topic."""
    input_bytes: int = Field(defaults.INPUT_BYTES, ge=0)
    """Bytes of large inputs of one partition. Of active runs: above it requests wait in their topic. Of waiting runs,
    again as many: above it requests are refused."""
    run_steps: int = Field(defaults.RUN_STEPS, ge=10)
    """Steps of one run; a run with more fails."""
    run_bytes: int = Field(defaults.RUN_BYTES, ge=10_000)
    """Bytes of the history of one run; a run with more fails."""
    live_bytes: int = Field(defaults.LIVE_BYTES, ge=0)
    """Bytes of executions of a planner between their steps; dropped ones are replayed when they continue."""
    signal_bytes: int = Field(SIGNAL_BYTES, ge=1_024)
    """Bytes of signals that a run keeps for future waits; others are dropped, with an event."""
    run_children: int = Field(defaults.RUN_CHILDREN, ge=0)
    """Children of one run; a run that starts more fails."""
    run_depth: int = Field(defaults.RUN_DEPTH, ge=0, le=9)
    """Largest number of ancestors of a run; ids have room for nine."""
    hang_ms: int = Field(5_000, ge=100)
    """Time that a run's code may block the planner before the run is quarantined and the process ends."""


class ExecutorPart(_SettingsPart):
    """Actions of executors. **Units**: milliseconds; see `engine.executor.settings`."""

    slots: int = Field(defaults.SLOTS, ge=1)
    lease_ms: int = Field(defaults.LEASE_MS, ge=100, le=3_600_000)
    chained_lease_ms: int = Field(defaults.CHAINED_LEASE_MS, ge=100, le=3_600_000)
    grace_ms: int = Field(defaults.GRACE_MS, ge=0)
    """Time for running tools after a stop request. Nothing else waits for them."""
    blind_ms: int = Field(defaults.BLIND_MS, ge=1_000)
    """Age limit of the view of the catalog, which contains halts and revocations: beyond it no call runs that needs a
    decision."""
    conversation_bytes: int = Field(defaults.CONVERSATION_BYTES, ge=0)
    """Bytes of conversations kept in memory, so that orders contain only new messages. 0: orders contain all of them.
    """
    approval: tuple[str, ...] = ()
    """Patterns of tools (`drop_*`) that never run without a decision here, besides those that declare it."""
    ledger_key: str = Field("", repr=False)
    """Key of the pool, 64 hexadecimal digits or a file of them: entries in Redis are valid only under it."""


class ApprovalPart(_SettingsPart):
    """Judgement of votes; `key` is the file of the key that signs decisions."""

    key: str = ""


class BlobsPart(_SettingsPart):
    """Store of values over 64 KiB: inputs, results, and notes of agents."""

    url: str = ""
    """`file:///folder`, `s3://bucket/path`, `gs://`, `az://`. Empty: none, and values too large for the log fail.
    Services and clients that start runs need the same."""
    max_bytes: int = Field(defaults.BLOB_BYTES, ge=65_536)
    """Longest value, as JSON text. An executor and a planner have one about four times in memory."""


class ArchivePart(_SettingsPart):
    """Archive of finished runs, and the time until they leave the topics. **Units**: milliseconds."""

    url: str = ""
    """`file:///folder`, `s3://bucket/path` or another address of obstore. Empty: none."""
    retention_ms: int = Field(defaults.RETENTION_MS, ge=0)
    """Time from the end of a run. Agents may override it: `@app.agent(retention=...)`."""
    horizon_days: Annotated[int, AfterValidator(_for_ever_or_a_month)] = 0
    """Days after its end that an erased run's id is remembered. 0: for ever. A later repetition of its request starts a
    new run."""
    every_ms: int = Field(3_600_000, ge=100)
    """Pause of the archivist between two passes; each reads the whole run log."""


class ViewsPart(_SettingsPart):
    """Database of projections."""

    url: str = ""
    """`sqlite:///folder/views.db` or `postgresql://user@host/database`. Empty: none."""
    run_view: bool = False
    """Also write the rows of `runs` to the topic `run-view`."""


class MetricsPart(_SettingsPart):
    """Address of a process's metrics and health."""

    address: str = ""
    """Port on this machine, or `0.0.0.0:9464`; one for each process of a machine. Empty: none."""


class TelemetryPart(_SettingsPart):
    """Export of traces. The SDK's `OTEL_EXPORTER_OTLP_*` set headers, certificate and compression."""

    endpoint: str = ""
    """`https://collector:4318/v1/traces`. Empty: the SDK's variables, or this machine."""
    content: bool = False
    """Include arguments and results as attributes of spans, redacted as in logs."""


class OidcPart(_SettingsPart):
    """Issuer whose tokens the gateway accepts. `actor` and `roles` name claims, nested as `realm_access.roles`."""

    issuer: str = ""
    """`iss` of tokens. Empty: none are accepted."""
    audience: str = ""
    jwks: str = ""
    """URL of the issuer's keys, `jwks_uri` of its configuration."""
    actor: str = "sub"
    roles: str = "roles"


class ProxyPart(_SettingsPart):
    """Proxy that authenticates users for the gateway."""

    actor: str = ""
    """Header with the name, such as `X-Forwarded-User`. Empty: no proxy."""
    roles: str = "X-Forwarded-Groups"
    """Header with the roles, separated by commas."""
    secret: str = Field("", repr=False)
    """Value of the header `Refold-Proxy-Secret`: 64 hexadecimal digits, or a file of them."""
    peers: tuple[IPvAnyNetwork, ...] = ()
    """Networks that it connects from, `10.0.0.0/24`."""


class GatewayPart(_SettingsPart):
    """Address and users of the gateway. Without keys, issuer or proxy: one user, of this machine."""

    host: str = "127.0.0.1"
    port: int = Field(8321, ge=1, le=65_535)
    hosts: tuple[str, ...] = ()
    """Host names of the gateway, besides those of this machine."""
    writes: Annotated[Rates, AfterValidator(partial(_with_defaults, defaults.GATEWAY_WRITES))] = defaults.GATEWAY_WRITES
    """Writes per minute of a `person` (cookie, proxy), a `program` (API key, token), a role, or an API key by its
    prefix; the most specific one applies."""
    reads: Annotated[Rates, AfterValidator(partial(_with_defaults, defaults.GATEWAY_READS))] = defaults.GATEWAY_READS
    """Reads per minute, likewise."""
    api_keys: str = ""
    """File of API keys."""
    oidc: OidcPart = OidcPart()
    proxy: ProxyPart = ProxyPart()
    roles: dict[str, str] = {}
    """Roles here by roles of the issuer and the proxy: `{"sre": "operator"}`."""
    session_key: str = Field("", repr=False)
    """Key that signs the cookies of all gateways: 64 hexadecimal digits, or a file. Empty: a key of this process."""
    vote_key: str = ""
    """File of the key that signs votes. Empty: the only one in the data folder."""
    people: dict[str, str] = {}
    """Persons that pages may act as, with the files of their vote keys. Set by `refold dev` only."""
    request_key: str = ""
    """File of the key that signs requesters of runs. Empty: the only one in the data folder, if any."""


class Settings(BaseSettings):
    """All settings of a process."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", env_ignore_empty=True, frozen=True, extra="forbid"
    )

    environment: str = Field("dev", min_length=1, max_length=100)
    """Part of every idempotency key: a test system and production never share an effect."""
    max_payload_bytes: int = Field(defaults.PAYLOAD_BYTES, ge=1_024, le=64 << 20)
    """Longest input, argument or result, as JSON text."""
    trust: str = ""
    """Public root keys that sign the catalog: `KID:X`, separated by commas, or `@FILE`."""
    allow_open: bool = False
    """Start services also beside an open (unprotected) Kafka or Redis of another machine."""
    member: str = ""
    """Name of a process in its group, by default service and host. It fences nothing."""
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
        """Scope of signatures by root keys and requesters: environment and topic prefix, as `production/refold.`."""
        return f"{self.environment}/{self.kafka.prefix}"


def load(**overrides: Any) -> Settings:
    """Settings of this process; `overrides` (of the command line) take priority over the environment.

    **Raises** UsageError for unknown REFOLD_ names and invalid values."""
    names = {name.upper() for name in Settings.model_fields}
    for name, value in os.environ.items():
        if name.upper().startswith(PREFIX) and not name.startswith(NOT_SETTINGS):
            room = name.upper().removeprefix(PREFIX).partition("__")[0]
            if _OF_A_SERVICE.search(f"{name}={value}"):
                _log.debug("%s is set by Kubernetes for a service", name)
            elif room not in names:
                raise UsageError(f"{name} is not a setting of Refold", hint=f"the rooms are {', '.join(sorted(names))}")
    try:
        return Settings(**overrides)
    except (ValidationError, ValueError) as error:
        raise UsageError(f"a setting is not valid: {_explain(error)}", hint="correct it in the environment") from None


def _explain(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)[:300]
    return "; ".join(f"{PREFIX}{'__'.join(str(p) for p in e['loc']).upper()}: {e['msg']}" for e in error.errors())
