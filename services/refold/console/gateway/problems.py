"""Errors as problems with a stable code and a fitting status, and the OpenAPI document with these problems."""

from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse
from starlette.exceptions import HTTPException

from refold.client.reading.api import HttpProblem
from refold.console.gateway.guard import is_page
from refold.console.gateway.logins import COOKIE
from refold.console.gateway.rates import BusyError
from refold.console.gateway.roles import role_of
from refold.console.gateway.site import below_prefix
from refold.console.pages.rendering import html_page
from refold.core import errors

_STATUS: tuple[tuple[type[errors.RefoldError], int], ...] = (
    (BusyError, 429),
    (errors.GoneError, 410),
    (errors.NotFoundError, 404),
    (errors.ReusedIdError, 422),
    (errors.ConflictError, 409),
    (errors.MalformedError, 422),
    (errors.UsageError, 422),
    (errors.UnauthorisedError, 403),
)
"""Status by error; any other concerns a dependency: 503."""

_CODES = {400: "malformed", 401: "login", 404: "no_route", 405: "no_method", 408: "slow_body", 413: "too_large"}
"""Codes of errors that no operation raised."""
MOST_DETAIL = 500
"""Characters of a detail: it quotes the request."""


async def problem(request: Request, error: Exception) -> Response:
    reply, headers = _answer_to(error)
    shared = request.scope.get("state", {}).get("gateway")
    if reply.status == 503 and shared is not None and shared.dev:
        hint = f"ask again in a moment; `refold dev status` shows what runs, {shared.data}/logs what is wrong"
        reply = reply.model_copy(update={"hint": hint})
    if is_page(request.url.path):
        if reply.status == 401 and request.method == "GET":
            back = quote(f"{request.url.path}?{request.url.query}".rstrip("?"))
            return below_prefix(request, RedirectResponse(f"/login?to={back}" if back != "/" else "/login", 303))
        shown = html_page("problem.html", shared, reply.status, problem=reply, place="", again=request.method == "GET")
        shown.headers.update(headers)
        return below_prefix(request, shown)
    # A detail may contain text that UTF-8 cannot encode.
    body = {
        name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for name, value in reply.model_dump().items()
    }
    return JSONResponse(body, reply.status, headers, media_type="application/problem+json")


def _answer_to(error: Exception) -> tuple[HttpProblem, dict[str, str]]:
    # The framework answers any error of parsing a body with its own: the cause has the code and the hint.
    if isinstance(error, HTTPException) and isinstance(error.__cause__, errors.RefoldError):
        error = error.__cause__
    if isinstance(error, RequestValidationError):
        detail = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()[:5])
        answer = HttpProblem(title="Unprocessable Content", status=422, detail=detail[:MOST_DETAIL], code="malformed")
        return answer, {}
    if isinstance(error, HTTPException):
        # The framework's 400 is a body that it cannot parse, for which our operations answer 422.
        status = 422 if error.status_code == 400 else error.status_code
        title, code = title_of(status), _CODES.get(error.status_code, "http")
        return HttpProblem(title=title, status=status, detail=error.detail, code=code), {**(error.headers or {})}
    assert isinstance(error, errors.RefoldError), "no other is handled here"
    return _raised_problem(error)


def _raised_problem(error: errors.RefoldError) -> tuple[HttpProblem, dict[str, str]]:
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 503)
    title, detail = title_of(status), error.message[:MOST_DETAIL]
    answer = HttpProblem(title=title, status=status, detail=detail, code=error.code, hint=error.hint)
    wait_s = max(1, round(getattr(error, "retry_after", None) or 1))
    return answer, {"Retry-After": str(wait_s)} if status in (429, 503) else {}


_SCHEMA = "#/components/schemas/HttpProblem"
_ALWAYS = (403, 413, 415, 421, 503)
_LOGINS = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "an API key, or a token of the OpenID provider"},
    "cookie": {"type": "apiKey", "in": "cookie", "name": COOKIE, "description": "of `POST /api/login`, for browsers"},
}
_PROBLEMS: dict[int, tuple[str, str, str]] = {
    401: ("Unauthorized", "login", "log in with an API key or a token: Authorization: Bearer ..."),
    403: ("Forbidden", "other_origin", "a page of another site may not use this"),
    404: ("Not Found", "not_found", "there is no run inc-1"),
    408: ("Request Timeout", "slow_body", "the body did not come within 10 s"),
    409: ("Conflict", "conflict", "run inc-1 is completed already"),
    410: ("Gone", "erased", "run inc-1 was erased at 2026-11-27T09:30:00Z"),
    413: ("Content Too Large", "too_large", "a body has 2097152 bytes at most"),
    415: ("Unsupported Media Type", "media_type", "content-type 'text/plain', content-encoding ''"),
    421: ("Misdirected Request", "other_host", "'example.org' is no name of this machine"),
    422: ("Unprocessable Content", "malformed", "'no id' is not a run id"),
    429: ("Too Many Requests", "busy", "6000 writes a minute"),
    503: ("Service Unavailable", "behind", "the view is behind run-log/0/7"),
}
_EXAMPLES = {
    "run": "inc-1",
    "session": "shop-7",
    "call": "inc-1/3",
    "digest": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "number": 1,
    "subject": "refold.run-log-value",
    "version": "latest",
    "step": 3,
    "token": "cb_inc-1_Zm9yIGFuIGV4YW1wbGU",
    "approval": "inc-1/3~1:5f2b0c9d8e7a6f41",
    "left": 1,
    "right": 9,
    "Refold-After": "run-log/0/7",
    "Idempotency-Key": "inc-1",
    "Last-Event-ID": "9",
}


def title_of(status: int) -> str:
    # The standard library's names depend on the version of Python.
    return _PROBLEMS[status][0] if status in _PROBLEMS else HTTPStatus(status).phrase


def documented(document: dict[str, Any]) -> dict[str, Any]:
    schemas = document["components"]["schemas"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas["HttpProblem"] = HttpProblem.model_json_schema(mode="serialization")
    document["components"] |= {
        "securitySchemes": _LOGINS,
        "responses": {_response_name(status): _problem_response(status) for status in _PROBLEMS},
    }
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            _complete_operation(path, method, operation)
    return {name: part if name == "info" else _untitled(part) for name, part in document.items()}


def _complete_operation(path: str, method: str, operation: dict[str, Any]) -> None:
    if role := role_of(operation["operationId"], {method.upper()}):
        operation["security"] = [{name: [role]} for name in _LOGINS]
        _add_problem(operation["responses"], 401)
    for status in _problem_statuses(path, method):
        _add_problem(operation["responses"], status)
    for parameter in operation.get("parameters", ()):
        if parameter["name"] in _EXAMPLES:
            parameter["example"] = _EXAMPLES[parameter["name"]]


def _untitled(part: Any, *, names: bool = False) -> Any:
    """Part without titles of schemas, which repeat names; `names`: its keys are names of properties."""
    if isinstance(part, list):
        return [_untitled(element) for element in part]
    if not isinstance(part, dict):
        return part
    named = ((key, value) for key, value in part.items() if names or key != "title")
    return {key: value if key == "example" else _untitled(value, names=key == "properties") for key, value in named}


def _problem_statuses(path: str, method: str) -> list[int]:
    statuses = set(_ALWAYS)
    if path.startswith("/api/"):
        statuses |= {422, 429}
    if "{" in path:
        statuses |= {404, 410} if path.startswith("/api/") else {404, 422}
    if method == "post":
        statuses |= {408, 409}
    return sorted(statuses)


def _response_name(status: int) -> str:
    return _PROBLEMS[status][0].replace(" ", "")


def _add_problem(responses: dict[str, Any], status: int) -> None:
    # The framework's own 422 has another form.
    own = responses.get(str(status), {}) if status != 422 else {}
    if "content" in own:
        problem = _problem_response(status)
        own |= problem | {"content": own["content"] | problem["content"]}
    else:
        responses[str(status)] = {"$ref": f"#/components/responses/{_response_name(status)}"}


def _problem_response(status: int) -> dict[str, Any]:
    title, code, detail = _PROBLEMS[status]
    example = HttpProblem(title=title, status=status, detail=detail, code=code).model_dump()
    content = {"application/problem+json": {"schema": {"$ref": _SCHEMA}, "example": example}}
    response: dict[str, Any] = {"description": title, "content": content}
    if status == 401:
        response["headers"] = {"WWW-Authenticate": {"description": "how to log in", "schema": {"type": "string"}}}
    if status in (429, 503):
        wait = {"description": "seconds until it is worth asking again", "schema": {"type": "integer"}}
        response["headers"] = {"Retry-After": wait}
    return response
