"""`refold keys`: keys that sign decisions, votes and requests; public ones are in the catalog."""

from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from refold.cli import options, output
from refold.cli.commands.provision import key_entry, new_root, save_pub
from refold.cli.platform import Printer, Shell, time_ms
from refold.cli.signing import SigningOptions, root_path, warn_of_void
from refold.client.platform import Platform, login
from refold.core.approval.catalog import is_person, no_person
from refold.core.approval.signature import REQUEST, ROOT, PublicKey, SigningKey, pinned
from refold.core.errors import ConflictError, NotFoundError, UsageError
from refold.engine.runtime import keys
from refold.engine.runtime.addresses import data_dir
from refold.engine.runtime.clock import clock_ms

ApiOption = Annotated[bool, "An API key of the gateway, in place of a key that signs."]
FileOption = Annotated[str, "FILE", "For --api: file of the API keys.  \\[default: REFOLD_GATEWAY__API_KEYS]"]


def init_root(
    *,
    root: options.RootOption = "",
    pub: Annotated[str, "FILE", "File for the public key, for services.  \\[default: beside the root key]"] = "",
    data: options.DataOption = "",
    printer: Printer,
) -> None:
    """Create the root key, which signs policies, roles and keys. An existing one is shown again.

    The holder of this key controls the platform: store the file away from services and people's daily work.
    """
    path = root_path(root, data)
    try:
        key = keys.load(path, ROOT)
    except NotFoundError:
        key = new_root(path)
    public = pinned(key.public())
    beside = Path(pub) if pub else path.with_suffix(".pub")
    save_pub(beside, public)
    lines = [
        f"root key [bold]{output.escape(key.kid)}[/] signs the catalog",
        f"private: {output.escape(str(path))}",
        f"every service needs  REFOLD_TRUST={output.escape(public)}",
        f"or with a file       REFOLD_TRUST=@{output.escape(str(beside))}",
    ]
    printer.print({"kid": key.kid, "file": str(path), "public_file": str(beside), "trust": public}, "\n".join(lines))


@dataclass(frozen=True, kw_only=True)
class NewKey(SigningOptions):
    use: Annotated[str, "Purpose: decision, vote or request."] = ""
    actor: Annotated[list[str] | None, "Person the key signs for. May be repeated."] = None
    anybody: Annotated[bool, "Sign for any person: for a gateway that authenticates its users."] = False
    role: Annotated[
        list[str] | None,
        "Role that the key may assert for its actors; with --api: viewer, operator, approver, admin, or a role that "
        "policies name. May be repeated.",
    ] = None
    strength: Annotated[str, "Login method of the key's holder, for policies."] = ""
    out: Annotated[str, "FILE", "File for the private key.  \\[default: keys/KID.json in --data]"] = ""
    publish_: Annotated[bool, "--publish/--no-publish", "Publish the public key in the catalog."] = True
    replaces: Annotated[str, "KID", "Retire this key, and give the new one its use and owner."] = ""
    at: Annotated[
        str, "TIME", "Time the replaced key retires, such as 2030-01-31T12:00Z; until then both sign.  \\[default: now]"
    ] = ""
    api: ApiOption = False
    expires: Annotated[str, "TIME", "With --api: expiry, or a duration such as 90d.  \\[default: never]"] = ""
    file: FileOption = ""

    def check_alone(self, name: str) -> None:
        if name:
            raise UsageError("a key that replaces another has its owner", hint="--replaces KID, --at and --out alone")
        self.refuse("use actor role api anybody strength publish_ expires file", "does not go with --replaces")

    def check(self) -> None:
        """Check use and people of a key. **Raises** UsageError, as for a root key, or a vote key without people."""
        if self.use in ("vote", REQUEST) and self.anybody == bool(self.actor):
            both = "the key is for some people and for anybody"
            problem = both if self.anybody else "whom the key speaks for is not said"
            raise UsageError(problem, hint="add --actor NAME, or --anybody for a gateway that authenticates its users")
        for name in self.actor or ():
            if not is_person(name):
                raise UsageError(no_person(name), hint="--actor names a person")
        if self.use == ROOT:
            raise UsageError("a root key is in no catalog", hint="`refold keys init` makes it")


def new_key(
    name: Annotated[str, "Name of the key's owner, which begins its id; none with --replaces."] = "", *, holder: NewKey
) -> None:
    """Create a key: a file, and a catalog entry.

    With --replaces the old key signs no more; its earlier signatures hold. If it may be stolen, revoke it instead.
    With --api the key is printed once, and the file has its digest: gateways accept it at once.
    """
    if holder.replaces:
        holder.check_alone(name)
        _replace_key(holder.replaces, holder)
        return
    if not name or not (holder.use or holder.api):
        raise UsageError("a key has an owner and a use", hint="add NAME and --use, or --replaces KID")
    if holder.api:
        holder.refuse("use actor anybody strength out publish_ at", "is for a key that signs")
        _api_keys().make_api_key(name, tuple(dict.fromkeys(holder.role or ())), holder.expires, holder.file, holder)
    else:
        holder.refuse("expires file", "is for a key of the gateway, with --api")
        holder.refuse("at", "is for --replaces")
        _create_key(name, holder)


def _create_key(name: str, holder: NewKey) -> None:
    key = keys.new(holder.use, name)
    more = {"actors": tuple(holder.actor or ()), "roles": tuple(holder.role or ()), "strength": holder.strength}
    public = PublicKey.parse(key.public(**more).content())
    holder.check()
    if holder.publish_:
        _ = holder.platform.catalog  # raises if it cannot be read, before there is a file
    path = _save_key(key, holder.out, holder.data)
    if holder.publish_:
        holder.publish([key_entry(public, login())])
    _print_new(holder, public, path, published=holder.publish_)


def list_keys(*, api: ApiOption = False, file: FileOption = "", shell: Shell) -> None:
    """List the keys in the catalog, or the API keys in a file."""
    if api or file:
        _api_keys().list_api_keys(file, shell)
        return
    now_ms = clock_ms()
    catalog = shell.platform.catalog
    closed = catalog.closed
    rows = [
        {**key.content(), "state": "unreadable" if f"key/{key.kid}" in closed else _key_state(key, now_ms)}
        for key in catalog.whole.keys.values()
    ]
    warn_of_void(catalog)
    shell.print_rows(rows, "kid use state actors roles strength reason", "no keys; `refold keys new` makes one")


def _replace_key(kid: str, holder: NewKey) -> None:
    retired_ms = time_ms(holder.at, "--at") if holder.at else clock_ms()
    if holder.at and retired_ms < clock_ms():
        problem = f"{holder.at} is over: a key that retired then would never have signed what it did since"
        raise UsageError(problem, hint="leave --at out for now; `refold keys revoke` takes back what a key has signed")
    old = _published_key(holder.platform, kid)
    if old.revoked or 0 < old.retired_ms <= clock_ms():
        raise ConflictError(f"the key {kid} signs nothing any more", hint="`refold keys new` makes a new one")
    key = keys.new(old.use, kid.rpartition("-")[0] or kid)
    path = _save_key(key, holder.out, holder.data)
    public = key.public(actors=old.actors, roles=old.roles, strength=old.strength)
    retired = replace(old, retired_ms=retired_ms, reason=f"rotated to {key.kid}")
    holder.publish([key_entry(public, login()), key_entry(retired, login())])
    _print_new(holder, public, path, rotated=kid, retired_ms=retired_ms)


def revoke_key(
    kid: Annotated[str, "KID", "The key's id, or prefix of an API key, as `refold keys list` prints it."],
    *,
    reason: Annotated[str, "Reason, for the catalog."] = "",
    api: ApiOption = False,
    file: FileOption = "",
    signing: SigningOptions,
) -> None:
    """Revoke a key and everything it ever signed. Revoking it again only changes the reason.

    An API key is refused at once; its sessions and streams end within seconds.
    """
    if api or file:
        if reason:
            raise UsageError("--reason is for a key of the catalog: an API key has none", hint="leave it out")
        _api_keys().revoke_api_key(kid, file, signing)
        return
    if not reason.strip():
        raise UsageError("a key is revoked for a reason", hint="add --reason TEXT")
    public = replace(_published_key(signing.platform, kid), revoked=True, reason=reason)
    signing.publish([key_entry(public, login())])
    text = f"key [bold]{output.escape(kid)}[/] is revoked: what it signed is refused from now on"
    signing.print(public.content(), text)


def _api_keys() -> ModuleType:
    # The import needs the extra `gateway`.
    return import_module("refold.cli.commands.apikeys")


def _published_key(platform: Platform, kid: str) -> PublicKey:
    key = platform.catalog.whole.keys.get(kid)
    if key is None:
        raise NotFoundError(f"the catalog has no key {kid}", hint="`refold keys list`")
    return key


def _save_key(key: SigningKey, out: str, data: str) -> Path:
    path = Path(out) if out else data_dir(data) / "keys" / f"{key.kid}.json"
    keys.save(key, path)
    return path


def _print_new(shell: Shell, public: PublicKey, path: Path, *, published: bool = True, **more: Any) -> None:
    lines = [
        f"key [bold]{output.escape(public.kid)}[/] signs {public.use}s",
        f"private: {output.escape(str(path))}",
        f"public:  {'in the catalog' if published else output.escape(public.x) + ', not published'}",
    ]
    if "rotated" in more:
        lines.append(f"key [bold]{output.escape(more['rotated'])}[/] signs until {output.in_utc(more['retired_ms'])}")
    shell.print({**public.content(), "file": str(path), "published": published, **more}, "\n".join(lines))


def _key_state(public: PublicKey, now_ms: int) -> str:
    """State of a key in lists: `early` is before its first valid time, `retiring` before its set retirement."""
    if public.revoked:
        return "revoked"
    if public.retired_ms:
        return "retired" if public.retired_ms <= now_ms else "retiring"
    return "early" if public.not_before_ms > now_ms else "active"
