"""Signing and publishing with the root key."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from refold.cli import options, output
from refold.cli.platform import Shell
from refold.client import catalog
from refold.client.catalog import CatalogReader
from refold.core.approval.signature import ROOT, SigningKey, Trust
from refold.core.errors import UsageError
from refold.core.messages import CatalogEntry
from refold.engine.runtime import keys
from refold.engine.runtime.addresses import ROOT_KEY, data_dir


def root_path(root: str, data: str) -> Path:
    return Path(root) if root else data_dir(data) / ROOT_KEY


def root_key(path: Path, trust: Trust) -> SigningKey:
    """Load a root key. **Raises** NotFoundError; UsageError if REFOLD_TRUST lacks it."""
    key = keys.load(path, ROOT)
    if trust.get(key.kid) != key.public():
        hint = "name another with --root, or put this one into REFOLD_TRUST everywhere"
        raise UsageError(f"the root key {key.kid} in {path} is not one that REFOLD_TRUST names", hint=hint)
    return key


@dataclass(frozen=True)
class SigningOptions(Shell):
    root: options.RootOption = ""

    def publish(self, entries: Iterable[CatalogEntry]) -> CatalogReader:
        """Sign entries and write them to all partitions; return the catalog before them."""
        platform = self.platform
        platform.knock()
        key = root_key(root_path(self.root, self.data), platform.trust)
        before = platform.catalog
        catalog.publish(platform.publisher, before, entries, key)
        return before


def warn_of_void(catalog: CatalogReader) -> None:
    for void in catalog.void[-5:]:
        output.warn(f"a record of the catalog is void: {void}")
    if len(catalog.void) > 5:
        output.warn(f"and {len(catalog.void) - 5} before; nobody but the authority should write there")
    if catalog.behind:
        names = ", ".join(map(str, catalog.behind))
        output.warn(f"partitions {names} of the catalog have something else: publish again, it mends them")
