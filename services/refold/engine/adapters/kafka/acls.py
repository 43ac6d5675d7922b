"""Access rules of the cluster, from `infra/topics.yaml`; everything else is denied. Each topic has one writer, on which
readers rely. Rights belong to roles, which `principals` maps; executors have a role per pool, `executor.POOL`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka import admin as kafka

from refold.core.errors import UsageError
from refold.engine.adapters.kafka import clients
from refold.engine.adapters.kafka.errors import ANSWER_S, kafka_error, translate
from refold.engine.adapters.kafka.topics import await_shown, declared
from refold.engine.runtime.settings import KafkaSettings

PRINCIPAL_ROLES = (
    *("planner", "executor", "approval", "client", "approver"),
    *("steward", "operator", "authority", "archivist", "viewer", "insights", "gateway", "source"),
)
EVERYWHERE = "*"
POOL_ROLE = "executor"
"""Role that exists once per pool."""

ResourceKind = Literal["topic", "group"]
AclState = Literal["there", "missing", "surplus", "wider"]
Principals = Mapping[str, Sequence[str]]

_T = TypeVar("_T")
B = TypeVar("B", kafka.AclBinding, kafka.AclBindingFilter)

_KINDS: dict[kafka.ResourceType, ResourceKind] = {kafka.ResourceType.TOPIC: "topic", kafka.ResourceType.GROUP: "group"}
# Untyped: the client declares these fields as texts.
_ALL: Any = None
_ANY = kafka.AclBindingFilter(
    *(kafka.ResourceType.ANY, _ALL, kafka.ResourcePatternType.ANY, _ALL, _ALL),
    *(kafka.AclOperation.ANY, kafka.AclPermissionType.ANY),
)
_REFUSALS = {
    KafkaError.SECURITY_DISABLED: (
        "this broker has no authorizer and lets everybody do everything",
        "set authorizer.class.name on all brokers; `refold topics acls --commands` shows the rules without a broker",
    ),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: (
        "you are not one who may see and change ACLs here",
        "run this as a super user of the cluster, or give one the output of `refold topics acls --commands`",
    ),
}


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """Rule of the broker; `name` is with our prefix, `pattern` is `literal` or `prefixed`."""

    principal: str
    kind: ResourceKind
    name: str
    pattern: str
    operation: str
    host: str = EVERYWHERE
    permission: str = "allow"


@dataclass(frozen=True, slots=True, order=True)
class AclRule:
    """Rule that is wanted or present. `state`: `there`; `missing`; `surplus`, unwanted and about our resources only;
    `wider`, unwanted and about resources of others too: only people may remove it."""

    acl: Acl
    state: AclState


def roles(pools: Iterable[str]) -> tuple[str, ...]:
    """Roles with rights, with `executor.POOL` for each pool."""
    every = [role for role in PRINCIPAL_ROLES if role != POOL_ROLE]
    return (*every, *(f"{POOL_ROLE}.{pool}" for pool in sorted(set(pools))))


def principals(rows: Iterable[str] = (), pools: Iterable[str] = ("default",)) -> dict[str, tuple[str, ...]]:
    """Principals by role: `User:refold-ROLE`, for pools `User:refold-executor-POOL`, unless a row `ROLE=User:NAME`
    (repeatable) replaces it. **Raises** UsageError for an unknown role or an untyped principal."""
    named: dict[str, tuple[str, ...]] = {}
    for text in rows:
        role, _, principal = text.partition("=")
        kind, _, name = principal.partition(":")
        if role.partition(".")[0] not in PRINCIPAL_ROLES or (role.partition(".")[0] == POOL_ROLE) != ("." in role):
            names = ", ".join(roles(pools))
            raise UsageError(f"{role!r} is not a role", hint=f"the roles are {names}; a pool's are {POOL_ROLE}.POOL")
        if not kind or not name:
            raise UsageError(f"{text!r} names no principal", hint=f"write {role}=User:NAME, as the broker logs it")
        named[role] = (*named.get(role, ()), principal)
    return {role: (f"User:refold-{role.replace('.', '-')}",) for role in roles(pools)} | named


def expected_acls(prefix: str, holders: Principals) -> list[Acl]:
    """Rules that `infra/topics.yaml` grants to these principals, under our prefix."""
    content = declared()
    rights = set(_topic_rights(content)) | set(_group_rights(content))
    acls = set()
    for role, kind, pattern, operation in rights:
        for principal, place in _principals_with(role, pattern, holders):
            name, star, _ = (prefix + place).partition("*")
            acls.add(Acl(principal, kind, name, "prefixed" if star else "literal", operation))
    return sorted(acls)


def _principals_with(role: str, pattern: str, holders: Principals) -> Iterator[tuple[str, str]]:
    """Principals of a right, each with its pattern: an executor's is narrowed to its own pool."""
    for name, named in holders.items():
        kind, _, pool = name.partition(".")
        if kind == role:
            yield from ((principal, pattern.replace("*", pool) if pool else pattern) for principal in named)


def quotas(holders: Principals) -> Iterator[tuple[str, Mapping[str, int]]]:
    """Kafka settings of quotas by principal, for Kafka's own tool: librdkafka 2.16 cannot set them."""
    for role, bounds in declared()["quotas"].items():
        yield from ((principal, bounds) for principal in holders[role])


def _topic_rights(content: Mapping[str, Any]) -> Iterator[tuple[str, ResourceKind, str, str]]:
    for pattern, topic in content["topics"].items():
        erasers = [] if pattern in content["erasing"]["spared"] else content["erasing"]["roles"]
        writers, readers = {*topic["writers"], *erasers}, {*topic["readers"], *erasers}
        yield from ((role, "topic", pattern, "write") for role in writers)
        yield from ((role, "topic", pattern, "read") for role in readers)
        for operation, everywhere in content["every_topic"].items():
            roles = topic.get(operation, everywhere)
            # Read and write imply describe.
            users = writers | readers if operation == "describe" else set()
            yield from ((role, "topic", pattern, operation) for role in roles if role not in users)


def _group_rights(content: Mapping[str, Any]) -> Iterator[tuple[str, ResourceKind, str, str]]:
    for pattern, group in content["groups"].items():
        yield from ((role, "group", pattern, "read") for role in group.get("members", ()))
        yield from ((role, "group", pattern, "describe") for role in group.get("visible", ()))


def compare(expected: Iterable[Acl], present: Iterable[Acl], prefix: str) -> list[AclRule]:
    """Wanted rules, present or missing, and unwanted ones about our resources."""
    ours, existing = set(expected), set(present)
    rules = [AclRule(acl, "there" if acl in existing else "missing") for acl in ours]
    places = {(acl.kind, acl.name, acl.pattern) for acl in ours}
    for acl in existing - ours:
        if any(_is_about(acl, *place) for place in places):
            rules.append(AclRule(acl, "surplus" if _is_only_ours(acl, prefix) else "wider"))
    return sorted(rules)


def _is_about(acl: Acl, kind: ResourceKind, name: str, pattern: str) -> bool:
    """True if a rule covers a resource, or a part of a prefixed one."""
    if acl.kind != kind:
        return False
    if acl.name == EVERYWHERE or acl.name == name:
        return True
    inside = pattern == "prefixed" and acl.name.startswith(name)
    return inside or (acl.pattern == "prefixed" and name.startswith(acl.name))


def _is_only_ours(acl: Acl, prefix: str) -> bool:
    if acl.pattern == "literal":
        return acl.name != EVERYWHERE
    return prefix != "" and acl.name.startswith(prefix)


class Acls:
    """ACLs of the cluster, compared with the expected ones."""

    def __init__(self, settings: KafkaSettings, holders: Principals | None = None) -> None:
        self._prefix = settings.prefix
        self._admin = clients.admin(settings)
        self.expected = expected_acls(settings.prefix, principals() if holders is None else holders)

    def rules(self) -> list[AclRule]:
        """Rules that are wanted or present. **Raises** UsageError without an authorizer or the right to list them."""
        bindings = _answer(self._admin.describe_acls(_ANY, request_timeout=ANSWER_S), "read the ACLs")
        if not bindings:
            # Perhaps they are hidden: the client swallows a refusal to list rules (confluent-kafka 2.16), but not one
            # to delete. This rule does not exist.
            nobody = Acl("User:refold-nobody", "topic", f"{self._prefix}nothing", "literal", "read")
            futures = self._admin.delete_acls([_binding_of(nobody, kafka.AclBindingFilter)], request_timeout=ANSWER_S)
            _answers(futures, "read the ACLs")
        return compare(self.expected, filter(None, map(_acl_of, bindings)), self._prefix)

    def diff(self) -> list[AclRule]:
        return [rule for rule in self.rules() if rule.state != "there"]

    def apply(self, *, prune: bool = False) -> list[AclRule]:
        """Create missing rules and, with `prune`, remove surplus ones; return the changes."""
        changes = [rule for rule in self.diff() if rule.state in (("missing", "surplus") if prune else ("missing",))]
        create = [_binding_of(rule.acl, kafka.AclBinding) for rule in changes if rule.state == "missing"]
        remove = [_binding_of(rule.acl, kafka.AclBindingFilter) for rule in changes if rule.state == "surplus"]
        # Missing rules come first: a renamed principal is never without rights.
        if create:
            _answers(self._admin.create_acls(create, request_timeout=ANSWER_S), "create the ACLs")
        if remove:
            _answers(self._admin.delete_acls(remove, request_timeout=ANSWER_S), "remove ACLs")

        def unseen() -> str:
            left = set(changes).intersection(self.diff())
            return f"{len(left)} changes of ACLs are not to be seen yet" if left else ""

        await_shown(unseen, "`refold topics acls --apply`")
        return changes


def may_do_everything(settings: KafkaSettings) -> bool:
    """True if this principal may alter the cluster: no authorizer, or a super user. **Raises** UnreachableError."""
    admin = clients.admin(settings)  # kept until there is an answer: it takes its questions with it
    future = admin.describe_cluster(include_authorized_operations=True, request_timeout=ANSWER_S)
    return kafka.AclOperation.ALTER in (_answer(future, "describe the cluster").authorized_operations or ())


def has_authorizer(settings: KafkaSettings) -> bool:
    """True if the cluster has an authorizer. **Raises** UnreachableError."""
    try:
        Acls(settings).rules()
    except UsageError as error:
        return str(error.fields["kafka"]) != "SECURITY_DISABLED"
    return True


def may_write(settings: KafkaSettings, topic: str) -> bool:
    """True if this principal may write an existing topic. **Raises** UnreachableError."""
    name, admin = settings.prefix + topic, clients.admin(settings)
    topics = TopicCollection([name])
    futures = admin.describe_topics(topics, include_authorized_operations=True, request_timeout=ANSWER_S)
    return kafka.AclOperation.WRITE in (_answer(futures[name], f"describe {name}").authorized_operations or ())


def _answer(future: Future[_T], action: str) -> _T:
    try:
        return future.result(ANSWER_S)
    except KafkaException as raised:
        error = kafka_error(raised)
    except TimeoutError:
        error = KafkaError(KafkaError._TIMED_OUT)
    if refusal := _REFUSALS.get(error.code()):
        # In words of our own: the broker's are the whole request, as Java prints it.
        raise UsageError(f"cannot {action}: {refusal[0]}", hint=refusal[1], kafka=error.name())
    raise translate(error, action)


def _answers(futures: Mapping[Any, Future[Any]], action: str) -> None:
    for future in futures.values():
        _answer(future, action)


def _acl_of(binding: kafka.AclBinding) -> Acl | None:
    kind = _KINDS.get(kafka.ResourceType(binding.restype))
    if kind is None:
        return None
    pattern = kafka.ResourcePatternType(binding.resource_pattern_type).name.lower()
    operation = kafka.AclOperation(binding.operation).name.lower()
    permission = kafka.AclPermissionType(binding.permission_type).name.lower()
    return Acl(binding.principal, kind, binding.name, pattern, operation, binding.host, permission)


def _binding_of(acl: Acl, kind: type[B]) -> B:
    return kind(
        kafka.ResourceType[acl.kind.upper()],
        acl.name,
        kafka.ResourcePatternType[acl.pattern.upper()],
        acl.principal,
        acl.host,
        kafka.AclOperation[acl.operation.upper()],
        kafka.AclPermissionType[acl.permission.upper()],
    )
