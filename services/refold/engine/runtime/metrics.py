"""`/metrics` for Prometheus and health of a process, from a small server in its own thread. It shows numbers that the
process has anyway; it queries Kafka for log ends, and Redis for nothing. Labels have few values, and never a run."""

import ipaddress
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from refold.core.errors import UsageError
from refold.engine.ports.log import Place
from refold.engine.runtime.alarms import ALARMS
from refold.engine.runtime.gauges import SECONDS, WAITING_INPUTS, Durations, Vitals
from refold.engine.runtime.own_host import is_own_host

HEAD_S = 10.0
"""Time for the head of a request: each waiting client takes a thread."""

Ends = Callable[[Mapping[Place, int]], Mapping[Place, int]]
"""End offsets of places, without the unknown ones."""

Requests = Callable[[], Mapping[str, int]]

_log = structlog.get_logger()


class VitalMetrics(Collector):
    """Metrics of a process, by service; requests to brokers are those of the process."""

    def __init__(self, vitals: Mapping[str, Vitals], ends: Ends, requests: Requests) -> None:
        self._vitals, self._ends, self._requests = vitals, ends, requests

    def collect(self) -> Iterator[Metric]:
        # A family has all its samples in one place.
        families: dict[str, Metric] = {}
        for service, vitals in self._vitals.items():
            for family in self._families(vitals, {"service": service}):
                if families.setdefault(family.name, family) is not family:
                    families[family.name].samples.extend(family.samples)
        yield from families.values()
        if sent := {(kind,): count for kind, count in self._requests().items()}:
            labels = {"service": next(iter(self._vitals))}
            yield _family(CounterMetricFamily, "refold_kafka_requests", "Requests to brokers", labels, sent, "request")

    def _families(self, of: Vitals, labels: dict[str, str]) -> Iterator[Metric]:
        durations = {
            "refold_turn_seconds": (of.turns, "Time that a turn of the service took, without what it waited for"),
            "refold_append_seconds": (of.appends, "Time until Kafka had acknowledged the awaited records of a turn"),
            "refold_ledger_seconds": (of.ledger, "Time of a round trip to the ledger"),
        }
        for name, (durations_of, text) in durations.items():
            yield _histogram(name, text, labels, durations_of)
        counters = {
            "refold_records_in": (of.records_in, "Records read"),
            "refold_records_out": (of.records_out, "Records written"),
            "refold_replayed_events": (of.counts["event.replayed"], "Events through which agents were replayed"),
            "refold_void_records": (of.counts["record.void"], "Records of the run log that extend no history"),
            "refold_dead_letters": (of.alarms["input.dead"], "Inputs that nobody could use"),
            "refold_leases_lapsed": (of.leases_lapsed, "Leases that ended without a result"),
        }
        for name, (count, text) in counters.items():
            yield _family(CounterMetricFamily, name, text, labels, {(): count})
        gauges = {
            "refold_lanes": (of.lanes, "Partitions that the process serves"),
            "refold_ready": (not of.readiness, "1 if it has its place in the group and has caught up"),
            "refold_live_executions": (of.executions, "Runs whose code is in memory; of executors, calls under way"),
            "refold_outbox_backlog_records": (of.unacknowledged, "Records sent and not acknowledged"),
        }
        for name, (value, text) in gauges.items():
            yield _family(GaugeMetricFamily, name, text, labels, {(): value})
        waiting = {(why,): count for why, count in of.waiting.items()}
        if waiting:
            yield _family(GaugeMetricFamily, WAITING_INPUTS, "Inputs that wait for something", labels, waiting, "for")
        lag, alarms = Counter[tuple[str]](), {(name, alarm.severity): of.alarms[name] for name, alarm in ALARMS.items()}
        for place, end in self._ends(of.positions).items():
            lag[(place[0],)] += max(0, end - of.positions[place])
        yield _family(GaugeMetricFamily, "refold_lag_records", "Records to read", labels, lag, "topic")
        yield _family(CounterMetricFamily, "refold_alarms", "News to act on", labels, alarms, "alarm", "severity")


def _family(kind: Any, name: str, text: str, labels: dict[str, str], values: Mapping[Any, float], *by: str) -> Metric:
    family = kind(name, text, labels=[*labels, *by])
    for key, value in sorted(values.items()):
        family.add_metric([*labels.values(), *key], value)
    return family  # type: ignore[no-any-return]


def _histogram(name: str, text: str, labels: dict[str, str], durations: Durations) -> Metric:
    family, total, buckets = HistogramMetricFamily(name, text, labels=[*labels]), 0, list[tuple[str, float]]()
    for bound, count in zip([*map(str, SECONDS), "+Inf"], durations.counts, strict=True):
        total += count
        buckets.append((bound, total))
    family.add_metric([*labels.values()], buckets, durations.total_s)
    return family


def place_of(address: str) -> tuple[str, int]:
    """Parse `9464`, `127.0.0.1:9464` or `[::1]:9464`; the default host is loopback. **Raises** UsageError."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    try:
        ipaddress.ip_address(host)
        if 0 <= int(port) < 1 << 16:
            return host, int(port)
    except ValueError:
        pass
    raise UsageError(f"REFOLD_METRICS__ADDRESS is {address!r}", hint="write a port, or an IP address and a port")


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, at: tuple[str, int], vitals: list[Vitals], registry: CollectorRegistry) -> None:
        self.address_family = AF_INET6 if ":" in at[0] else AF_INET
        self.vitals, self.registry = vitals, registry
        self.is_loopback = ipaddress.ip_address(at[0]).is_loopback
        super().__init__(at, _Answer)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # Probes may hang up early.
        if not isinstance(sys.exc_info()[1], ConnectionError):
            _log.exception("metrics.failed")


class _Answer(BaseHTTPRequestHandler):
    server: _Server
    timeout = HEAD_S

    def do_GET(self) -> None:
        vitals, path = self.server.vitals, self.path.partition("?")[0]
        # A browser names the host of the page: one that an attacker points at this machine may not read. Probes and
        # Prometheus reach other interfaces under any name.
        if self.server.is_loopback and not is_own_host(self.headers.get("Host", "")):
            self._send(421, "text/plain", b"this host is not loopback\n")
            return
        states = {"/livez": not any(part.hung() for part in vitals), "/startupz": all(part.started for part in vitals)}
        if path == "/metrics":
            self._send(200, CONTENT_TYPE_LATEST, generate_latest(self.server.registry))
        elif path == "/readyz":
            self._send(*_readiness(vitals))
        elif path in states:
            self._send(200 if states[path] else 503, "text/plain", b"yes\n" if states[path] else b"no\n")
        else:
            self._send(404, "text/plain", b"/metrics, /livez, /readyz, /startupz\n")

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that it has in the base class
        pass


def _readiness(vitals: Collection[Vitals]) -> tuple[int, str, bytes]:
    if lacks := next(filter(None, (part.readiness for part in vitals)), ""):
        return 503, "text/plain", f"no: {lacks}\n".encode()
    # A member that the group has given no partition is in reserve, and as ready as it can be: a rolling deploy of more
    # members than there are partitions would wait for it for ever.
    spare = ": in reserve, others serve all partitions" * all(part.spare for part in vitals)
    return 200, "text/plain", f"yes{spare}\n".encode()


@contextmanager
def shown(
    address: str, vitals: Mapping[str, Vitals], beside: Iterable[Collector], *, ends: Ends, requests: Requests = dict
) -> Iterator[None]:
    """Serve numbers of a process by service while the block lasts. **Raises** UsageError if the address is taken."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    for collector in (VitalMetrics(vitals, ends, requests), *beside):
        registry.register(collector)
    try:
        server = _Server(place_of(address), [*vitals.values()], registry)
    except OSError as error:
        hint = "set REFOLD_METRICS__ADDRESS to another one for each process of a machine, or to nothing"
        raise UsageError(f"metrics cannot be shown at {address}: {error.strerror}", hint=hint) from None
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    host, port = server.server_address[:2]
    _log.info("metrics.shown", address=f"{host!s}:{port}")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
