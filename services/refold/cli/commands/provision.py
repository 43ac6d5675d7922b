"""`refold setup`: creates topics, keys, roles and a policy on a Kafka."""

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Annotated

from refold.cli import options, output
from refold.cli.apps import load_app
from refold.cli.platform import connect
from refold.cli.signing import root_key
from refold.client import catalog, policies
from refold.core.approval.catalog import CURRENT, ROLES_ENTRY, Catalog, Roles
from refold.core.approval.policy import Policy
from refold.core.approval.signature import ROOT, KeyRing, PublicKey, SigningKey, Trust, pinned
from refold.core.errors import NotFoundError, UsageError
from refold.core.messages import CatalogEntry
from refold.core.topics import RUN_LOG
from refold.core.wire import canonical
from refold.core.wire.resources import resource
from refold.core.wire.seal import is_key
from refold.dev.files import write_atomic
from refold.engine.adapters.kafka.publisher import KafkaPublisher
from refold.engine.adapters.kafka.reader import KafkaLogReader
from refold.engine.adapters.kafka.topics import Topics
from refold.engine.runtime import keys
from refold.engine.runtime.addresses import LEDGER_KEY, ROOT_KEY, Addresses, addresses, data_dir
from refold.engine.runtime.clock import clock_ms
from refold.engine.runtime.settings import PARTITIONS, Settings

_POLICIES, _ROLES_FILE, _ACTOR = "policies", "roles.yaml", "refold dev"
# Most persons that pages act as: the gateway's environment has room for some hundred keys.
MOST_PEOPLE = 100


@dataclass(frozen=True, slots=True)
class Provision:
    """Files and pools of a platform. `policies` None means the default policy. `own` has key files that settings name
    elsewhere, by the names of `file`. `few`: one partition, unless a setting or topic has another number."""

    pools: tuple[str, ...]
    keys: Path
    policies: Path | None = None
    own: Mapping[str, Path] = field(default_factory=dict)
    few: bool = False
    people: Mapping[str, str] = field(default_factory=dict)
    """Persons of the pages of `refold dev`, with the files of their vote keys."""

    def file(self, name: str) -> Path:
        """Path of a key file: `root`, `trust` (public root key), `decision`, `vote` or `ledger`."""
        root = self.own.get("root", self.keys / ROOT_KEY.name)
        usual = {"root": root, "trust": root.with_suffix(".pub"), "ledger": self.keys.parent / LEDGER_KEY}
        return self.own.get(name) or usual.get(name, self.keys / f"{name}.json")

    def prepare(self, bootstrap: str) -> int:
        """Create missing files, topics and catalog entries; return the number of partitions."""
        if not (ledger := self.file("ledger")).exists():
            keys.write_private(f"{secrets.token_hex(32)}\n", ledger)
        where = addresses(kafka=bootstrap)
        root, trust = self._root_key(where)
        settings, kafka = where.settings, where.settings.kafka
        if self.few and not os.environ.get(PARTITIONS):
            partitions = {topic.topic: topic.partitions for topic in Topics(kafka).present()}
            kafka = kafka.model_copy(update={"partitions": partitions.get(kafka.prefix + RUN_LOG, 1)})
        if not kafka.light:  # it has made its own
            Topics(kafka, self.pools, payload_bytes=settings.max_payload_bytes).apply()
        reader = KafkaLogReader(kafka)
        current = catalog.read(reader, trust)
        # A key that is there stays as it is: it may have been retired or revoked.
        entries = self._entries(where, current.whole.policy)
        new = [entry for entry in entries if _must_be_published(current.whole.entries.get(entry.name), entry)]
        catalog.publish(KafkaPublisher(kafka, partitions=kafka.partitions, source="refold-dev"), current, new, root)
        self._warn(catalog.read(reader, trust).whole)
        return kafka.partitions

    def _root_key(self, where: Addresses) -> tuple[SigningKey, Trust]:
        """Load the root key and the trusted keys; create a missing root key if only this machine reaches the broker."""
        path, first = self.file("root"), where.closed and "trust" in self.own and not self.own["trust"].exists()
        trust = where.trust if where.settings.trust and not first else {}
        try:
            key = keys.load(path, ROOT)
        except NotFoundError:
            if trust or not where.closed:
                hint = "`refold keys init` makes one; give its file as --root, and REFOLD_TRUST to every service"
                raise NotFoundError(f"there is no root key {path}", hint=hint) from None
            key = new_root(path)
        if first or "trust" not in self.own:  # a file of REFOLD_TRUST may name other root keys, too
            save_pub(self.file("trust"), pinned(key.public()))
        trust = trust or KeyRing({key.kid: key.public()}, where.settings.platform)
        return root_key(path, trust), trust

    def _warn(self, current: Catalog) -> None:
        for use in ("decision", "vote"):
            path = self.file(use)
            public = current.keys[keys.load(path).kid] if path.exists() else None
            if public and not public.signs_at(clock_ms()):
                mend = f"`refold keys new NAME --use {use}` makes another, to be named by --key"
                output.warn(f"the key {public.kid} in {path} signs nothing any more ({public.reason}); {mend}")
        if missing := nobody_text(current):
            output.warn(missing)

    def _entries(self, where: Addresses, in_force: Policy | None) -> list[CatalogEntry]:
        """Catalog entries: keys and roles before the policy that names them."""
        folder = self.policies
        roles = folder.parent / _ROLES_FILE if folder else None
        people = [roles_entry(roles, _ACTOR)] if roles and roles.is_file() else []
        # A vote key for any name, and the default policy with a quorum of one, only where no other machine reaches the
        # brokers.
        signing = [_entry_of_key_file(self.file("decision"), "decision")]
        signing += [_entry_of_key_file(self.file("vote"), "vote")] if where.closed else []
        signing += [_entry_of_key_file(Path(path), "vote", (name,)) for name, path in self.people.items()]
        # Off this machine another policy may be in force, which stays.
        if not folder and not (where.local or (where.closed and in_force is None)):
            return [*signing, *people]
        policy = policies.merged_policy(policies.load_files([str(folder or resource("infra", "default-policy.yaml"))]))
        return [*signing, *people, *policy_entries(policy, _ACTOR)]


def new_root(path: Path) -> SigningKey:
    key = keys.new(ROOT, ROOT)
    keys.save(key, path)
    return key


def save_pub(path: Path, public: str) -> None:
    try:
        write_atomic(path, public + "\n")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", hint="name another place") from None


def policy_entries(policy: Policy, actor: str) -> list[CatalogEntry]:
    now_ms, text = clock_ms(), canonical.dumps(policy.content)
    return [
        # The text before the entry that puts it in force.
        CatalogEntry(f"policy/{policy.digest}", "policy", text, actor, now_ms),
        CatalogEntry(CURRENT, "current", canonical.dumps(policy.digest), actor, now_ms),
    ]


def key_entry(public: PublicKey, actor: str) -> CatalogEntry:
    return CatalogEntry(f"key/{public.kid}", "key", canonical.dumps(public.content()), actor, clock_ms())


def nobody_text(current: Catalog) -> str:
    """Warning about roles that the policy in force names and no person has, or empty."""
    nobody = policies.nobody_has(current.policy, current.roles)
    return f"nobody has {', '.join(nobody)} by the catalog: only logins may say so" if nobody else ""


def roles_entry(path: Path, actor: str) -> CatalogEntry:
    content = policies.load_file(path)
    Roles.parse(content)
    return CatalogEntry(ROLES_ENTRY, "roles", canonical.dumps(content), actor, clock_ms())


def setup(
    *,
    app: Annotated[str, "APP", "App with the pools and policies: MODULE:APP or path/file.py[:APP]."],
    policies: options.PoliciesOption = "",
    kafka: options.KafkaOption = "",
    root: options.RootOption = "",
    data: options.DataOption = "",
) -> None:
    """Create topics, keys and a policy on an existing Kafka.

    Keys go into the files that the services' settings name, else into the folder `keys` of --data; existing ones are
    kept. A root key, a vote key for anybody and the default policy are created only if all brokers are on this
    machine, or REFOLD_ALLOW_OPEN is true; otherwise run `refold keys init` first.
    """
    platform = connect(kafka=kafka, data=data)
    platform.knock()
    folder = Path(policies) if policies else folder_of(app)
    own, bootstrap, closed = _named(platform.settings, root), platform.settings.kafka.bootstrap, platform.where.closed
    needs = Provision(load_app(app).pools, data_dir(data).resolve() / "keys", folder, own)
    needs.prepare(bootstrap)
    output.say(f"topics and public keys{' and a policy' * bool(folder or closed)} are on {output.escape(bootstrap)}")
    output.say(f"serve with            REFOLD_TRUST=@{output.escape(str(needs.file('trust')))}")
    output.say(f"serve approvals with  --key {output.escape(str(needs.file('decision')))}")
    output.say(f"serve executors with  REFOLD_EXECUTOR__LEDGER_KEY={output.escape(str(needs.file('ledger')))}")
    if closed:
        output.say(f"vote with             --key {output.escape(str(needs.file('vote')))}")
        return
    output.say("next, for each who votes: refold keys new NAME --use vote --actor NAME")
    if not folder:
        output.say("and a policy of your own: refold policy publish FILES --roles FILE")


def _named(settings: Settings, root: str) -> dict[str, Path]:
    trust, ledger = settings.trust.removeprefix("@"), settings.executor.ledger_key
    files = {"root": root, "decision": settings.approval.key, "vote": settings.gateway.vote_key}
    files |= {"trust": trust if trust != settings.trust else "", "ledger": "" if is_key(ledger) else ledger}
    return {name: Path(file).resolve() for name, file in files.items() if file}


def folder_of(app: str) -> Path | None:
    """The folder `policies` beside an app's file or in the current folder."""
    path = Path(app.rpartition(":")[0] if ".py:" in app else app)
    beside = path.parent / _POLICIES if path.suffix == ".py" else Path(_POLICIES)
    return next((folder for folder in (beside, Path(_POLICIES)) if folder.is_dir()), None)


def people_of(policies_folder: Path | None, folder: Path) -> dict[str, str]:
    """Persons of the roles file beside `policies_folder`, each with a vote key's path in `folder`."""
    path = policies_folder.parent / _ROLES_FILE if policies_folder else None
    if path is None or not path.is_file():
        return {}
    roles = Roles.parse(policies.load_file(path))
    names = sorted(frozenset[str]().union(*roles.by_role.values()) - roles.revoked)[:MOST_PEOPLE]
    files = (folder / "people" / f"{blake2b(name.encode(), digest_size=8).hexdigest()}.json" for name in names)
    return dict(zip(names, map(str, files), strict=True))


def _must_be_published(current: CatalogEntry | None, entry: CatalogEntry) -> bool:
    return current is None or (entry.kind != "key" and current.content != entry.content)


def _entry_of_key_file(path: Path, use: str, actors: tuple[str, ...] = ()) -> CatalogEntry:
    try:
        key = keys.load(path)
    except NotFoundError:
        key = keys.new(use, f"dev-{use}")
        keys.save(key, path)
    return key_entry(key.public(strength="login", actors=actors) if use == "vote" else key.public(), _ACTOR)
