"""Scripted tools: results set by a test, in place of the real tools."""

import copy
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, cast

from refold.core.errors import UsageError
from refold.sdk.agent import AgentDef
from refold.sdk.app import App
from refold.sdk.secret import from_environment
from refold.sdk.tool import ToolDef


@dataclass(frozen=True, slots=True)
class Attempts:
    """Behaviour of a tool, by attempt."""

    answers: tuple[Any, ...]


def attempts(*answers: Any) -> Attempts:
    """A script for several calls: `attempts(NotDone("busy"), "done")` fails once, and then gives a result.

    **Shape**: one for every attempt, in order; one more attempt is an error of the test.
    """
    return Attempts(answers)


def scripted(app: App, scripts: Mapping[Callable[..., Any] | str, Any]) -> App:
    """App with scripts in place of tools: a result, which is checked against its type, an exception to raise,
    `attempts(...)`, or a function of any arguments of the tool. Secrets have made-up values, unless the app has its own
    provider. **Raises** UsageError for an unknown tool."""
    secrets = "the secret {}".format if app.secrets is from_environment else app.secrets
    doubles: dict[str, ToolDef] = {}
    for named, script in scripts.items():
        tool = app.find(named)
        doubles[tool.name] = tool.acted_by(_script_body(tool, script))
    return app.staged(doubles, secrets)


def as_by(app: App, agent: str, code: Callable[..., Any] | None) -> App:
    """App in which an agent has other code: of one of its versions, or unregistered code."""
    if code is None:
        return app
    versions = [version for version in app.versions(agent).values() if version.function is code]
    stage = copy.copy(app)
    stage.agents = {**app.agents, agent: versions[0] if versions else AgentDef(cast(FunctionType, code), name=agent)}
    return stage


def _script_body(tool: ToolDef, script: Any) -> Callable[..., Any]:
    if isinstance(script, FunctionType):
        return script
    answers = deque(script.answers) if isinstance(script, Attempts) else None

    def act() -> Any:
        if answers is not None and not answers:
            hint = "give it an answer more"
            raise UsageError(f"tool {tool.name} is called more often than its script says", hint=hint)
        answer = script if answers is None else answers.popleft()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return act
