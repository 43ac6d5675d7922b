"""What calls say while they run, beside the log: nothing here is folded."""

# No `from __future__ import annotations` here: the schema export reads the types of the fields, not their names.

from dataclasses import dataclass

from refold.core.ids import CallId, RunId


@dataclass(frozen=True, slots=True)
class StreamPart:
    """Topic `run-stream`, key call_id: what a call says while it runs, the tokens of a model. Nothing rests on it.

    `attempt`, and `began_ms` for one that another executor has taken over, say which try it is; `n` numbers its parts.
    """

    run_id: RunId
    call_id: CallId
    attempt: int
    began_ms: int
    n: int
    kind: str
    data: str
