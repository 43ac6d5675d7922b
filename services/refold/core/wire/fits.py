"""Offline validation of a JSON value by a JSON Schema, in any draft."""

from functools import lru_cache
from itertools import islice
from typing import Any

from jsonschema_rs import RegexOptions, ValidationError, Validator, validator_for

from refold.core.wire import canonical

MOST_REASONS, REASON_CHARACTERS = 5, 200
"""Limits of the faults reported to the sender of a value."""


def misfit(schema: str, value: Any) -> str:
    """Faults of a value in one line, or of its invalid schema; empty if the value fits."""
    try:
        errors = list(islice(_validator(schema).iter_errors(value), MOST_REASONS))
    except (ValidationError, ValueError) as error:
        return f"its schema cannot be used: {str(error)[:REASON_CHARACTERS]}"
    return "; ".join(map(_text, errors))


def _text(error: ValidationError) -> str:
    place = ".".join(map(str, error.instance_path))
    text = error.message[:REASON_CHARACTERS]
    return f"{place}: {text}" if place else text


@lru_cache(maxsize=256)
def _validator(schema: str) -> Validator:
    # Offline, or a schema could make a planner open any address; and patterns in linear time for any input.
    return validator_for(canonical.parse(schema), validate_formats=True, pattern_options=RegexOptions(), offline=True)
