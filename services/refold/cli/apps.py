"""Import of a user's app by name."""

from refold.core.errors import RefoldError, UsageError
from refold.sdk.app import App
from refold.sdk.frames import user_frames


def load_app(target: str) -> App:
    """Load the app at `MODULE:APP` or `path/file.py[:APP]`. **Raises** UsageError with the app's line that failed."""
    try:
        return App.load(target)
    except RefoldError:
        raise
    except Exception as error:
        own = user_frames(error)
        place = f" ({own[-1].filename}, line {own[-1].lineno}: {own[-1].line})" if own else ""
        message = f"{target} cannot be loaded: {type(error).__name__}: {error}{place}"
        raise UsageError(message, hint="run it again with REFOLD_DEBUG=1 for the whole traceback") from error


def app_pools(app: str) -> tuple[str, ...]:
    return load_app(app).pools if app else ("default",)
