"""Who is who: names of people as they are compared, so that nobody is two by another spelling of their name."""

from __future__ import annotations

import unicodedata

from refold.core.glyphs import UNSEEN, mistaken_for
from refold.core.messages import ApprovalRequest


def spelt(name: str) -> str:
    """The one spelling of a name: without case, and without what Unicode writes in two ways."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).strip()


def is_clear(name: str) -> bool:
    """Whether a name can be told from others by looking at it: nothing unseen in it, and letters of one alphabet."""
    return name.isprintable() and not UNSEEN.search(name) and not mistaken_for(name)


def is_same(one: str, other: str) -> bool:
    """Whether two names are one person's, as far as names can tell. Where they cannot, they are not."""
    return bool(one.strip()) and is_clear(one) and is_clear(other) and spelt(one) == spelt(other)


def has_asked(request: ApprovalRequest, actor: str) -> bool:
    """Whether somebody may be who asked for the run. What the request says of that is what its client has said.

    `ada` and `ada@corp.example` may be one: of two that are different people, one more is left out than need be.
    """
    asked, voted = spelt(request.requester), spelt(actor)
    if "@" in asked and "@" in voted:
        return asked == voted
    return asked.partition("@")[0] == voted.partition("@")[0]
