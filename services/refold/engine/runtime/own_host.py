"""Check of `Host` headers against DNS rebinding, for servers on loopback."""

import re

# Not `is_here` of `engine.runtime.addresses`: that takes URLs too, and a user in front of a host.
_OWN_HOST = re.compile(
    r"(localhost|127(\.[0-9]{1,3}){3}|\[::(1|ffff:(127(\.[0-9]{1,3}){3}|7f[0-9a-f]{2}:[0-9a-f]{1,4}))\])(:[0-9]{1,5})?",
    re.IGNORECASE,
)


def is_own_host(host: str) -> bool:
    return _OWN_HOST.fullmatch(host) is not None
