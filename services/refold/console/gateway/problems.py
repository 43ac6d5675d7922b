"""Errors as problems with a stable code and a fitting status."""

from urllib.parse import quote

from refold.core.errors import not_installed

try:
    from fastapi import Request, Response
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse, RedirectResponse
    from starlette.exceptions import HTTPException
except ModuleNotFoundError as missing:
    raise not_installed(missing) from None

from refold.client.reading.api import HttpProblem
from refold.console.gateway.describing import title_of
from refold.console.gateway.guard import is_page
from refold.console.gateway.rates import BusyError
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
    reply, headers = _told(error)
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


def _told(error: Exception) -> tuple[HttpProblem, dict[str, str]]:
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
    return _of_operation(error)


def _of_operation(error: errors.RefoldError) -> tuple[HttpProblem, dict[str, str]]:
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 503)
    title, detail = title_of(status), error.message[:MOST_DETAIL]
    answer = HttpProblem(title=title, status=status, detail=detail, code=error.code, hint=error.hint)
    wait_s = max(1, round(getattr(error, "retry_after", None) or 1))
    return answer, {"Retry-After": str(wait_s)} if status in (429, 503) else {}
