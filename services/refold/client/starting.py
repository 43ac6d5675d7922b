"""The request for a run, as whoever asks for one makes it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence

from refold.client.stores import blob_store
from refold.core.approval.requester import signed
from refold.core.approval.signature import SigningKey
from refold.core.events import Spendable
from refold.core.ids import run_id
from refold.core.messages import RunRequest
from refold.core.wire import canonical
from refold.core.wire.blobs import is_large
from refold.core.wire.sizes import check_size
from refold.runtime.clock import clock_ms
from refold.runtime.settings import Settings


def made_up_id(agent: str) -> str:
    """An id for a run of an agent that no other run has."""
    return f"{re.sub('[^A-Za-z0-9_-]', '-', agent)}-{secrets.token_hex(8)}"


def requesting(
    agent: str,
    given: object,
    *,
    run: str = "",
    requester: str,
    labels: Mapping[str, str],
    sessions: Sequence[str],
    not_before_ms: int = 0,
    deadline_ms: int = 0,
    budget: Spendable | None = None,
    settings: Settings,
    key: SigningKey | None,
) -> RunRequest:
    """A request, signed if there is a key. A large input is put into the blob store, if there is one.

    **Raises** MalformedError for what is no id, no JSON or too large; UnreachableError.
    """
    name = run_id(run or made_up_id(agent))
    text = canonical.dumps(given)
    if is_large(text) and (store := blob_store(settings)):
        check_size("input", canonical.utf8_bytes(text), settings.blobs.max_bytes)
        text = store.put(name, text)
    request = RunRequest(
        name,
        agent,
        text,
        requester,
        not_before_ms,
        dict(labels),
        sessions=list(sessions),
        deadline_ms=deadline_ms,
        budget=budget,
    )
    return signed(request, key, clock_ms(), settings.platform) if key else request
