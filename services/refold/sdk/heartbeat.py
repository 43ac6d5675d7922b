"""Notice to a running tool that its result is no longer needed."""


class Cancelled(BaseException):
    """Notice that a call was cancelled or timed out, or its executor ends: let it pass, and clean up in `finally`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Heartbeat:
    """Check for the end of a call, made now and then by a long tool, from any thread: raises Cancelled if its result is
    no longer needed. The executor extends the lease in any case."""

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
        """Cancel the tool, as its executor: the next check raises. The reason of the first cancellation stays."""
        self.reason = self.reason or reason or "cancelled"
