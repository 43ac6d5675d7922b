"""Lock on the name of a service: at most one living process of a machine has it."""

import fcntl
import os
import secrets
import tempfile
from hashlib import blake2b
from pathlib import Path

from refold.core.errors import ConflictError


def lock_member(group: str, member: str) -> str:
    """Lock a name until the process ends; return the id of the lock, which earlier, dead processes of this name had
    too. If no file can be locked, the id is new. **Raises** ConflictError if a living process has the lock."""
    folder = Path(tempfile.gettempdir(), f"refold-{os.getuid()}")
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        file = os.open(folder / blake2b(f"{group}/{member}".encode(), digest_size=16).hexdigest(), flags, 0o600)
    except OSError:
        return secrets.token_hex(8)
    try:
        # A POSIX lock: the kernel releases it with the process, and a forked child of a tool does not inherit it.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(file, 100).decode(errors="replace").partition(" ")[2].strip() or "unknown"
        os.close(file)
        text, hint = f"process {holder} of this machine is {member}", "stop it, or give this one its own --member"
        raise ConflictError(text, hint=hint, pid=holder) from None
    lock_id = os.read(file, 100).decode(errors="replace").partition(" ")[0] or secrets.token_hex(8)
    os.pwrite(file, f"{lock_id} {os.getpid():<10}".encode(), 0)
    return lock_id
