"""Parts that the routes share: the view, the writer, the streams, and limits of concurrent requests."""

import asyncio
import gzip
import re
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass, field
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from fastapi import Depends, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.types import Message, Receive, Scope, Send

from refold.client.awaiting import AsyncClient
from refold.client.operations.run import Signed, signing
from refold.client.operations.runs import Runs
from refold.client.platform import Platform
from refold.client.reading.api import LARGEST_NUMBER
from refold.console.gateway.figures import LiveFigures
from refold.console.gateway.forks import ForkRoom
from refold.console.gateway.logins import Login, Logins
from refold.console.gateway.rates import DEFAULT_LIMITS, BusyError, GatewayLimits, RateLimit, SharedRoom
from refold.console.gateway.reading import NotYetError, ReadSide, after_of, patiently
from refold.console.gateway.roles import SAFE, role_of
from refold.console.gateway.streams import RunStreams
from refold.console.gateway.writing import REBUILD, Refusals, WriteSide
from refold.core.approval.signature import SigningKey
from refold.core.errors import RefoldError, UnreachableError, may_be_archived
from refold.core.ids import run_id
from refold.core.topics import RUN_INSIGHT
from refold.core.wire import canonical
from refold.engine.adapters.blobs.store import ObjectBlobs
from refold.engine.ports.tables import ViewDatabase, ViewReader
from refold.engine.runtime.addresses import vote_key
from refold.engine.stores import archived_blobs, blob_store

if TYPE_CHECKING:
    from refold.console.projections.archived import ArchivedRuns

_T = TypeVar("_T")

MOST_READS = MOST_WRITES = 64
ROOMS = {"reads": MOST_READS, "writes": MOST_WRITES, "waits": 64, "large values": 64, "bundles": 4, "archived files": 2}
"""Concurrent requests by kind. Bundles stay in memory for slow readers; archived files have 64 MiB or more."""
BUSY_S = 2.0
"""Seconds after which a read without room to wait is refused."""
LEAST_PACKED = 1_000
"""Least bytes to compress."""
DEFAULT_WAIT_S = 2.0
LONGEST_WAIT_S = 30.0


@dataclass
class Gateway:
    """Parts that the routes share; `by` copies it for the login of a request."""

    platform: Platform
    database: ViewDatabase
    logins: Logins
    client: AsyncClient
    request_key: SigningKey | None = None
    forks: ForkRoom = field(default_factory=ForkRoom)
    data: str = ""
    """Folder of keys that no setting names."""
    dev: bool = False
    """True if `refold dev` has started this gateway, the planner and executors."""
    limits: GatewayLimits = DEFAULT_LIMITS
    address: str = field(default="/inbox", init=False)
    """Page of the request: forms that lead back to it name it."""
    login: Login | None = field(default=None, init=False)
    archived: str = field(default="", init=False)
    """File of the archive from which this request is answered."""

    def __post_init__(self) -> None:
        self.refusals = Refusals(self.platform)
        self.reading = ReadSide(self.database, self.refusals.of, self.limits)
        self.writing = WriteSide(self.platform, self.reading, self.refusals, lambda: self.client.broken)
        self._archive = _archive(self.platform.settings.archive.url)
        self.streams = RunStreams(self.reading, self.platform, self.limits)
        self.figures = LiveFigures(lambda: self.platform.runs.reader.tail(RUN_INSIGHT))
        self._rate = RateLimit(self.limits.names)
        self._rooms = {kind: SharedRoom(most, kind) for kind, most in ROOMS.items()}

    def by(self, login: Login | None, address: str = "/inbox") -> Self:
        """Return a copy for a request, which writes in the name of the login."""
        gateway, client = copy(self), self.client
        if login is not None:
            client = client.of(login.actor, roles=login.roles, vote_key=self.logins.people.get(login.actor, ""))
        vars(gateway).update(login=login, client=client, address=address)
        return gateway

    def signer(self) -> SigningKey | None:
        file = self.logins.people.get(self.actor, "") or self.platform.settings.gateway.vote_key
        with suppress(RefoldError):
            return vote_key(file, self.data)
        return None

    @property
    def actor(self) -> str:
        """Name in which everything is written."""
        return self.login.actor if self.login is not None else ""

    def check_role(self, role: str) -> None:
        if self.login is not None:
            self.login.check(role)

    def may_use(self, route: str) -> bool:
        return self.login is None or self.login.may(role_of(route, ["POST"]))

    def may_write(self, route: str) -> bool:
        """True if a form of a route, which writes to Kafka, would not be refused now."""
        return self.may_use(route) and not self.writing.away

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of this gateway, besides this machine's."""
        return () if self.logins.local else self.platform.settings.gateway.hosts

    @property
    def sign(self) -> Signed:
        """Signer of signals by a run's requester, if there is a key."""
        return signing(self.request_key, self.platform.settings.platform)

    def place(self, kind: str) -> AbstractContextManager[None]:
        return self._rooms[kind].one(self.actor)

    @contextmanager
    def view(self, after: str) -> Iterator[ViewReader]:
        """The view as of one moment, after a `Refold-After`. **Raises** BusyError."""
        with self.place("reads"), self.reading.still(after_of(after)) as view:
            yield view

    @contextmanager
    def view_of(self, run: str, after: str) -> Iterator[ViewReader]:
        """Lend the view, or one of a run's archived copy. **Raises** as `view`; UnreachableError if it stands still."""
        with self.view(after) as view:
            # Its runs may be erased meanwhile, and missing ones may exist.
            if reason := self.writing.stands_still(view.notes()):
                raise UnreachableError(reason, hint=f"{REBUILD}; `refold run show` reads the log")
            missing = self.reading.missing(view, run) if self._archive else None
            # A run that was erased without a copy stays erased, even if an older copy exists.
            if missing is None or self._archive is None or not may_be_archived(missing):
                yield view
                return
        with self.place("archived files"), ExitStack() as opened:
            if (copy := self._archive.find(run_id(run), missing.fields.get("file", ""), opened)) is None:
                raise missing
            self.archived, view = copy
            yield view

    def blobs(self) -> ObjectBlobs | None:
        settings = self.platform.settings
        return archived_blobs(settings, settings.archive.url) if self.archived else blob_store(settings)

    @contextmanager
    def log(self) -> Iterator[Runs]:
        """Runs read from Kafka. **Raises** UnreachableError at once while it is away, BusyError."""
        with self.place("reads"):
            self.platform.knock()
            yield self.platform.runs

    async def wait(self, look: Callable[[], _T]) -> _T:
        """Repeat a look without holding a thread. **Raises** as `patiently`, BusyError."""
        try:
            with self.place("waits"):
                return await patiently(look, self.limits.wait_s)
        except BusyError:
            # Without a wait, hundreds of refused clients would come again more often than the gateway can answer.
            await asyncio.sleep(BUSY_S)
            raise

    def room(self, kind: Literal["reads", "writes"]) -> AbstractContextManager[None]:
        """Room for a request. **Raises** BusyError when the login had too many, or too many writes are running."""
        part, login = self.platform.settings.gateway, self.login
        if login is None:
            return nullcontext()
        most = login.most(part.reads if kind == "reads" else part.writes)
        if wait_s := self._rate.wait_s(f"{kind} {bool(login.cookie)} {login.key or login.actor}", most):
            hint = f"REFOLD_GATEWAY__{kind.upper()} sets it by person, program, role and API key"
            raise BusyError(f"{most} {kind} a minute", retry_after=wait_s, hint=hint)
        return self.place(kind) if kind == "writes" else nullcontext()


def _archive(url: str) -> "ArchivedRuns | None":
    return import_module("refold.console.projections.archived").ArchivedRuns(url) if url else None  # it needs an extra


class SentFile(StreamingResponse):
    """A file generated while it is sent. The first bytes are made before the status, so that an error gets its own."""

    send_s = 20.0
    """Seconds for sending a part: a slow client must not hold a place."""

    def __init__(self, parts: Generator[bytes], media_type: str, **headers: str) -> None:
        self._parts, first = parts, next(parts)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        super().__init__(chain((first,), parts), headers=named, media_type=media_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            await asyncio.wait_for(send(message), self.send_s)

        try:
            with suppress(TimeoutError):  # the server ends the connection of an answer that is not whole
                await super().__call__(scope, receive, send_in_time)
        finally:
            self._parts.close()


class StrictRequest(Request):
    """A request whose body is read as strict JSON: no duplicate keys, no NaN, no lone surrogates."""

    async def json(self) -> Any:
        return await run_in_threadpool(canonical.parse, await self.body(), containers=canonical.MAX_CONTAINERS)


class StrictRoute(APIRoute):
    """Route that checks the login before it reads the body, as strict JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            gateway: Gateway = request.state.gateway
            login = await gateway.logins.admit(request, self.name)
            address = f"{request.url.path}?{request.url.query}".rstrip("?") if request.method == "GET" else "/inbox"
            shared = request.scope["state"]["gateway"] = gateway.by(login, address)
            if login is not None and (after := request.headers.get("refold-after", "")):
                with suppress(NotYetError):  # the handler reports it
                    await shared.wait(lambda: shared.reading.check_after(after_of(after)))
            with shared.room("reads" if request.method in SAFE else "writes"):
                response = below_prefix(request, await handle(StrictRequest(request.scope, request.receive)))
            if shared.archived:
                response.headers["Refold-Archive"] = shared.archived
            if login is not None and not login.local and isinstance(response, StreamingResponse):
                vars(response).update(body_iterator=gateway.logins.while_held(login, response.body_iterator))
            if _compressed(request, response, login):
                packed = await run_in_threadpool(gzip.compress, response.body, 5, mtime=0)
                vars(response).update(body=packed)
                response.headers["Content-Length"] = str(len(packed))
                response.headers.update({"Content-Encoding": "gzip", "Vary": "Accept-Encoding"})
            return response

        return strict


_LINKS = re.compile(rb' (href|src|action|formaction|data-stream)="(?=/(?!/))')
_PREFIX = re.compile("(/[A-Za-z0-9._~-]+)+")


def below_prefix(request: Request, response: Response) -> Response:
    """Put links and redirects below the path that a proxy's header names."""
    prefix = request.headers.get("x-forwarded-prefix", "").rstrip("/")
    if not _PREFIX.fullmatch(prefix):
        return response
    if (place := response.headers.get("location", "")).startswith("/"):
        response.headers["Location"] = f"{prefix}{place}"
    if response.headers.get("content-type", "").startswith("text/html") and hasattr(response, "body"):
        # Text of users has no such attribute: in it a quotation mark is escaped.
        body = _LINKS.sub(rb' \1="' + prefix.encode(), bytes(response.body))
        vars(response).update(body=body)
        response.headers["Content-Length"] = str(len(body))
    return response


def _compressed(request: Request, response: Response, login: Login | None) -> bool:
    # With a cookie, no other site may have chosen reflected text: from compressed sizes an eavesdropper could derive
    # the secret of a page's forms (BREACH).
    own = not (login and login.cookie) or request.headers.get("sec-fetch-site") in ("none", "same-origin")
    accepted, kind = request.headers.get("accept-encoding", ""), response.headers.get("content-type", "")
    long = len(getattr(response, "body", b"")) > LEAST_PACKED
    return own and "gzip" in accepted and kind.startswith("text/") and long


# Not sync: FastAPI runs such a dependency in a thread of its own, for each request.
async def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.state.gateway
    return gateway


Site = Annotated[Gateway, Depends(_gateway)]


async def show_lag(shared: Site, response: Response) -> None:
    """Add `Refold-Lag`, the seconds since Kafka last answered, while it is away."""
    if lag_s := shared.writing.lag_s:
        response.headers["Refold-Lag"] = str(lag_s)


AfterHeader = Annotated[
    str,
    Header(alias="Refold-After", max_length=8_000, description="places of writes to wait for, as an answer named them"),
]
Key = Annotated[str, Header(alias="Idempotency-Key", max_length=200, description="the same again is the same input")]
WaitOption = Annotated[float, Query(ge=0, le=LONGEST_WAIT_S, description="seconds to wait for the outcome")]
Seq = Annotated[int, Path(ge=1, le=LARGEST_NUMBER, description="number of an event")]
SeqOption = Annotated[int, Query(ge=0, le=LARGEST_NUMBER, description="events behind this one")]
