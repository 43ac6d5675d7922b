"""Upper bound of a request to a model, reserved before it is sent."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, cast

from pydantic_ai.durable_exec import ModelCompactMessagesParams, ModelRequestParams
from pydantic_ai.models import Model
from pydantic_core import to_jsonable_python

from refold.contrib.pydantic_ai.conversation import Conversations, Prepared
from refold.core.run.account import Reserve
from refold.core.wire import canonical
from refold.core.wire.conversation import OF_RUN

MOST_OUTPUT = 4_096
"""Tokens of an answer, if the settings have no `max_tokens`."""

BYTES_A_TOKEN = 2
"""Fewer than any tokenizer makes of text, so that the estimate is too large. Pictures count as their base64."""


def facts_digest(facts: Any) -> str:
    """Digest of settings, equal in every process. Values without a JSON form count by their type."""
    plain = to_jsonable_python(facts, fallback=lambda other: type(other).__name__, inf_nan_mode="strings")
    return blake2b(canonical.dumps(plain).encode(), digest_size=8).hexdigest()


ModelAsked = ModelRequestParams | ModelCompactMessagesParams


def most_of(params: ModelAsked, model: str, prepared: Prepared, text: str, so_far: Conversations) -> Reserve:
    """Reservation for each attempt of a request: tokens of the one that it continues, and bytes of the new `text`."""
    request = params if isinstance(params, ModelRequestParams) else params.request_context
    counted = max((so_far.tokens.get(step, 0) for step in prepared.builds_on), default=0)
    own_bytes = canonical.utf8_bytes(text) - canonical.utf8_bytes(canonical.dumps(prepared.arguments[OF_RUN]))
    new = own_bytes + sum(so_far.sizes.get(step, 0) for step in prepared.builds_on)
    most = (request.model_settings or {}).get("max_tokens") or MOST_OUTPUT
    return Reserve(model, counted + new // BYTES_A_TOKEN, most, cheap=so_far.cheaper)


@dataclass(frozen=True, slots=True)
class Models:
    """Models of an agent by the names in requests; `cheaper` is for runs whose budget degrades."""

    models: Mapping[str, Model]
    usual: Callable[[], str | None]
    cheaper: str = ""

    def identity(self, model_id: str | None) -> str:
        model = self.models.get(model_id or "default")
        if model is None:
            return model_id or self.usual() or ""
        settings = [member.settings for member in (model, *getattr(model, "models", ())) if member.settings]
        return f"{model.model_id}+{facts_digest(settings)}" if settings else model.model_id

    def name(self, model_id: str | None) -> str:
        """Name of a model in prices, `provider:name`; of several fallbacks the first."""
        model = self.models.get(model_id or "default")
        while model is not None and getattr(model, "models", None):
            model = cast(Any, model).models[0]
        return model.model_id if model is not None else model_id or self.usual() or ""
