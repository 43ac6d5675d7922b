"""Secrets: names in the log and on screens, values only in tools, looked up right before a call. Callers choose the
names, so a name must not reach other values: `from_environment` reads only variables and files for secrets, and
`Secret.only` binds a parameter to some of them."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from pydantic import GetCoreSchemaHandler
from pydantic_core import core_schema

from refold.core.errors import NotDone, UsageError, text_of
from refold.core.redaction import HIDDEN

_NAME: Final = r"^[A-Za-z0-9_][A-Za-z0-9_./:@-]{0,199}$"
_PLAIN = re.compile(r"[a-z0-9][a-z0-9_]{0,99}\Z")
"""Names of variables and files. No two become one there, or a rule about one would miss the other."""

_FIELD: Final = "secret"

Provider = Callable[[str], str]
"""Return the value of a secret by its name, or raise. Called in a thread of its own."""


class Secret:
    """A secret by its name: `Secret("stripe_key")` in an agent; in a tool `reveal` returns its value.

    An argument of this type is `{"secret": "stripe_key"}` wherever it is written, shown or judged.

    **Example**

    >>> Secret("stripe_key")
    Secret('stripe_key')
    """

    __slots__ = ("_value", "name")

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not re.fullmatch(_NAME, name):
            hint = "a secret is named, never handed over: letters, digits and _ . / : @ -"
            raise UsageError("that is no name of a secret", hint=hint)
        self.name = name
        self._value: str | None = None

    def reveal(self) -> str:
        """Return the value. **Raises** UsageError outside of a tool that an executor runs."""
        if self._value is None:
            hint = "only an executor looks it up, for a tool"
            raise UsageError(f"the secret {self.name} has no value here", hint=hint)
        return self._value

    @staticmethod
    def only(*names: str) -> Any:
        """Annotation of a parameter for these names alone: `key: Annotated[Secret, Secret.only("stripe_key")]`."""
        return _NamedSecrets(tuple(Secret(name).name for name in names))

    def __repr__(self) -> str:
        return f"Secret({self.name!r})"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.name == self.name

    def __hash__(self) -> int:
        """Hash of the name, as equality compares names alone."""
        return hash(self.name)

    def __reduce__(self) -> "tuple[type[Secret], tuple[str]]":
        return Secret, (self.name,)  # a copy or a pickle has the name alone

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, __: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return _schema(core_schema.str_schema(pattern=_NAME))


@dataclass(frozen=True, slots=True)
class _NamedSecrets:
    names: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: Any, __: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        if source is not Secret or not self.names:
            raise UsageError("Secret.only is for secrets, and names them", hint='Annotated[Secret, Secret.only("key")]')
        return _schema(core_schema.literal_schema(list(self.names)))


class Secrets:
    """Secrets named in the arguments of one attempt."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._named: list[Secret] = []

    def __bool__(self) -> bool:
        return bool(self._named)

    def note(self, secret: Secret) -> None:
        self._named.append(secret)

    def look_up(self) -> None:
        """Look up all values. **Raises** NotDone if one is unavailable: nothing was sent so far."""
        for secret in self._named:
            try:
                secret._value = str(self._provider(secret.name))
            except Exception as error:  # noqa: BLE001 - a provider is the user's code, and asks a server of its own
                # The texts of other errors may contain the value, and so may a cause.
                problem = f"no value for the secret {secret.name}: {type(error).__name__}"
                why = f": {text_of(error)}" if isinstance(error, UsageError) else ""
                raise NotDone(problem + why) from None

    def hide(self, text: str) -> str:
        """Return the text without the values, also where they are quoted in a URL."""
        for secret in self._named:
            for value in filter(None, (secret._value, quote(secret._value or "", safe=""))):
                text = text.replace(value, HIDDEN)
        return text


def from_environment(name: str) -> str:
    """Return the variable `REFOLD_SECRET_NAME`, else the file NAME in the folder `REFOLD_SECRETS`.

    **Raises** UsageError if there is neither, or the name has other than lower-case letters, digits and underscores.
    """
    if not _PLAIN.match(name):
        raise UsageError(f"{name!r} is not looked up in the environment", hint="use lower-case letters, digits and _")
    variable = f"REFOLD_SECRET_{name.upper()}"
    if (value := os.environ.get(variable)) is not None:
        return value
    if folder := os.environ.get("REFOLD_SECRETS"):
        try:
            return (Path(folder) / name).read_text().removesuffix("\n")
        except OSError as error:
            hint = f"create it, or set {variable}"
            raise UsageError(f"cannot read {Path(folder) / name}: {error.strerror}", hint=hint) from None
    raise UsageError(f"{variable} is not set, nor is REFOLD_SECRETS", hint="set one of them for the executor")


def _schema(names: core_schema.CoreSchema) -> core_schema.CoreSchema:
    """Pydantic schema of a Secret, in JSON `{"secret": name}`. Reading adds it to the context, if that is Secrets."""
    field = core_schema.typed_dict_field(names)
    reference = core_schema.typed_dict_schema({_FIELD: field}, extra_behavior="forbid")

    def to_secret(value: dict[str, str], info: core_schema.ValidationInfo) -> Secret:
        secret = Secret(value[_FIELD])
        if isinstance(info.context, Secrets):
            info.context.note(secret)
        return secret

    def to_reference(value: Any) -> Any:
        return {_FIELD: value.name} if isinstance(value, Secret) else value

    read = core_schema.no_info_before_validator_function(to_reference, reference)
    write = core_schema.plain_serializer_function_ser_schema(lambda value: {_FIELD: value.name})
    return core_schema.with_info_after_validator_function(to_secret, read, serialization=write)
