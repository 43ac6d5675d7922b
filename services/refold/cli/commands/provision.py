"""What a platform needs before its services start: topics, keys, roles and a policy, all published. `refold setup`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import output
from refold.cli.platform import DataOption, KafkaOption, connect, data_dir
from refold.core.errors import NotFoundError

if TYPE_CHECKING:
    from refold.core.messages import CatalogEntry
    from refold.ports.log import LogReader
    from refold.runtime.settings import Settings

POLICIES, ROLES = "policies", "roles.yaml"


@dataclass(frozen=True, slots=True)
class Provision:
    """The files of a platform. `policies` is a folder of rules, None for the default policy."""

    pools: tuple[str, ...]
    keys: Path
    policies: Path | None = None

    @property
    def decision_key(self) -> Path:
        """The key that the approval service signs with."""
        return self.keys / "decision.json"

    @property
    def vote_key(self) -> Path:
        """The key that this machine's command line signs votes with."""
        return self.keys / "vote.json"

    def prepare(self) -> Callable[[str], None]:
        """What makes all of it true on a broker. Whatever is there already is left alone."""

        def prepared(bootstrap: str) -> None:
            from refold.adapters.kafka.topics import Topics
            from refold.runtime.settings import load

            settings = load(kafka={"bootstrap": bootstrap})
            Topics(settings.kafka, self.pools, payload_bytes=settings.max_payload_bytes).apply()
            self._publish(settings)

        return prepared

    def _publish(self, settings: Settings) -> None:
        from refold.adapters.kafka.publisher import KafkaPublisher
        from refold.adapters.kafka.reader import KafkaLogReader
        from refold.client import catalog

        count = settings.kafka.partitions
        reader = KafkaLogReader(settings.kafka)
        known = [_entries_of(reader, number) for number in range(count)]
        publisher = KafkaPublisher(settings.kafka, partitions=count, source="refold-dev")
        for entry in self._entries():
            # A key that is there stays as it is: it may have been retired or revoked.
            if any(_differs(there.get(entry.name), entry) for there in known):
                catalog.publish(publisher, count, entry)
        for trouble in self.troubles(settings):
            output.console(stderr=True).print(f"[yellow]warning: {output.escape(trouble)}[/]")

    def troubles(self, settings: Settings) -> list[str]:
        """What keeps people from deciding though all is published: keys that sign no more, roles that nobody has."""
        from refold.adapters.kafka.reader import KafkaLogReader
        from refold.client import catalog, policies
        from refold.runtime import keys

        there = catalog.read_catalog(KafkaLogReader(settings.kafka))
        found = []
        for path, use in ((self.decision_key, "decision"), (self.vote_key, "vote")):
            public = there.keys[keys.load(path).kid]
            if not public.signs_at(time.time_ns() // 1_000_000):
                mend = f"`refold keys new NAME --use {use}` makes another, to be named by --key"
                found.append(f"the key {public.kid} in {path} signs nothing any more ({public.reason}); {mend}")
        if nobody := policies.nobody_has(there.policy, there.roles):
            found.append(f"nobody has {', '.join(nobody)} by the catalog: only logins may say so")
        return found

    def _entries(self) -> list[CatalogEntry]:
        """Keys and roles before the policy that needs them, and its text before the word that it is in force."""
        from refold.client import policies
        from refold.core.approval.catalog import CURRENT
        from refold.core.approval.catalog import ROLES as PEOPLE
        from refold.core.approval.policy import Policy, merge
        from refold.core.messages import CatalogEntry
        from refold.core.wire import canonical
        from refold.core.wire.resources import resource

        found = [_key(self.decision_key, "decision"), _key(self.vote_key, "vote")]
        folder = self.policies
        roles = folder.parent / ROLES if folder else None
        if roles is not None and roles.is_file():
            found.append(CatalogEntry(PEOPLE, "roles", canonical.dumps(policies.load_file(roles)), "refold dev"))
        source = folder or resource("infra", "default-policy.yaml")
        policy = Policy.parse(merge(policies.load([str(source)])))
        text = canonical.dumps(policy.content)
        found.append(CatalogEntry(f"policy/{policy.digest}", "policy", text, "refold dev"))
        found.append(CatalogEntry(CURRENT, "current", canonical.dumps(policy.digest), "refold dev"))
        return found


def setup(
    app: Annotated[str, typer.Option("--app", help="MODULE:APP or path/file.py[:APP], for its pools and policies.")],
    *,
    policies: Annotated[
        str, typer.Option("--policies", metavar="FOLDER", help="Policy files.  [default: policies/, if it is there]")
    ] = "",
    kafka: KafkaOption = "",
    data: DataOption = "",
) -> None:
    """Do for a platform elsewhere what `refold dev` does for its own: topics, keys, roles and a policy.

    Keys go into the folder keys of --data; what is there already is left alone.
    """
    from refold.sdk.app import App

    platform = connect(kafka=kafka, data=data)
    platform.knock()
    folder = Path(policies) if policies else folder_of(app)
    needs = Provision(App.load(app).pools, data_dir(data).resolve() / "keys", folder)
    needs.prepare()(platform.settings.kafka.bootstrap)
    output.say(f"topics, public keys and a policy are on {output.escape(platform.settings.kafka.bootstrap)}")
    output.say(f"serve approvals with  --key {output.escape(str(needs.decision_key))}")
    output.say(f"vote with             --key {output.escape(str(needs.vote_key))}")


def folder_of(app: str) -> Path | None:
    """The folder `policies` beside an app's file or in the current folder, if there is one."""
    path = Path(app.rpartition(":")[0] if ".py:" in app else app)
    beside = path.parent / POLICIES if path.suffix == ".py" else Path(POLICIES)
    return next((folder for folder in (beside, Path(POLICIES)) if folder.is_dir()), None)


def _entries_of(reader: LogReader, partition: int) -> dict[str, str]:
    from refold.core.messages import CatalogEntry
    from refold.core.topics import CATALOG
    from refold.core.wire import codec

    found: dict[str, str] = {}
    for record in reader.scan(CATALOG, partition):
        if record.value is None:
            found.pop((record.key or b"").decode(), None)
        else:
            entry = codec.decode(CatalogEntry, record.value)
            found[entry.name] = entry.content
    return found


def _differs(there: str | None, entry: CatalogEntry) -> bool:
    return there is None or (entry.kind != "key" and there != entry.content)


def _key(path: Path, use: str) -> CatalogEntry:
    from refold.core.messages import CatalogEntry
    from refold.core.wire import canonical
    from refold.runtime import keys

    try:
        key = keys.load(path)
    except NotFoundError:
        key = keys.new(use, f"dev-{use}")
        keys.save(key, path)
    strength = {"strength": "login"} if use == "vote" else {}
    return CatalogEntry(f"key/{key.kid}", "key", canonical.dumps(key.public(**strength).content()), "refold dev")
