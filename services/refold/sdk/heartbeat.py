"""Notice to a running tool that its result is no longer needed."""


class Cancelled(BaseException):
    """The call was cancelled, timed out or is shutting down. Control flow: let it pass, and clean up in `finally`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Heartbeat:
    """Call it now and then in a long tool, from any thread: it raises Cancelled once the call is no longer wanted. The
    executor extends the lease in any case."""

    def __init__(self) -> None:
        self.reason = ""

    def __call__(self) -> None:
        if self.reason:
            raise Cancelled(self.reason)

    @property
    def cancelled(self) -> bool:
        """True if the call was cancelled; does not raise."""
        return bool(self.reason)

    def cancel(self, reason: str) -> None:
        """For the executor: cancel the tool. The first reason stays."""
        self.reason = self.reason or reason or "cancelled"
