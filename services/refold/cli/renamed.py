"""Old names of commands: for one release they answer with the new names, and do nothing else."""

from __future__ import annotations

from refold.core.errors import UsageError

RENAMED = {
    "demo": "make demo",
    "bench": "make bench",
    "sim": "make sim",
    "version": "refold --version",
}
"""New name by old name. The new one may have the option that the old command has become."""


def refuse_renamed(args: list[str]) -> None:
    """Check that a command line begins with no old name. **Raises** UsageError."""
    # The longest name first: `keys api new` is not `keys api`.
    for count in (3, 2, 1):
        old = " ".join(args[:count])
        if new := RENAMED.get(old):
            hint = f"{new} --help" if new.startswith("refold") else "in a clone of the repository"
            raise UsageError(f"refold {old} is now {new}", hint=hint)
