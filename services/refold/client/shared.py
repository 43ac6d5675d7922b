"""What both clients take and make of it: where the platform is, who speaks, words of a vote, timeouts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Literal

from refold.client.desk import Desk
from refold.core.errors import TimedOutError
from refold.core.planning.asking import CAME
from refold.core.wire import canonical

Action = Literal["approve", "edit", "reject", "answer"]
Came = Literal["happened", "did_not_happen", "give_up"]
State = Literal["open", "decided", "closed", "all"]
WAIT = timedelta(seconds=30)


class ClientBase:
    """What both clients are made of.

    `kafka` is the address of Kafka; without it, that of REFOLD_KAFKA__BOOTSTRAP or of the `refold dev` on the folder
    `data` (or REFOLD_DATA, `.refold`). All other settings are those of services, REFOLD_*. `actor` is in whose name
    it speaks; without it, the login of this process. `key` and `vote_key` are files of keys: the first signs that the
    actor asks for a run, the second what they decide. Without them it is the only such key in `data`, if there is one.
    """

    def __init__(self, *, kafka: str = "", data: str = "", actor: str = "", key: str = "", vote_key: str = "") -> None:
        self._desk = Desk(kafka=kafka, data=data, actor=actor, key=key, vote_key=vote_key)


def said_with(action: str, args: Mapping[str, object] | None, result: object, message: str) -> dict[str, str]:
    """What goes with an action; `ballot.check_vote` refuses what does not fit."""
    said = {"message": message} if message else {}
    if action == "edit":
        said["args"] = canonical.dumps(dict(args or {}))
    return said | ({"result": canonical.dumps(result)} if action == "answer" else {})


def action_for(verdict: Came) -> str:
    """What somebody votes who says that this came of a call."""
    return next(action for action, word in CAME.items() if word == verdict)


def seconds(timeout: timedelta | None) -> float | None:
    """A timeout as the rooms below take it."""
    return None if timeout is None else timeout.total_seconds()


def too_late(what: str, timeout: timedelta | None) -> TimedOutError:
    """What is raised when a wait is over."""
    return TimedOutError(f"{what} after {seconds(timeout):g} s", hint="nothing is lost: what was sent stays in the log")
