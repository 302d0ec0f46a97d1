"""What can go wrong between a client and a service."""

from splitcore._native import SplitcoreError

__all__ = ["AnswerError", "ServiceError", "SessionError", "UnreachableError"]


class ServiceError(SplitcoreError):
    """The service has answered that it does not do it."""

    def __init__(self, status: int, code: str, message: str, param: str | None, retry_after: float | None) -> None:
        """Keep what the answer says.

        Args:
            status: Of HTTP.
            code: For programs, as ``"no_machine"``.
            message: For people.
            param: The field that it is about, if it is about one.
            retry_after: Seconds after which the same call may succeed, if the service says so.
        """
        super().__init__(f"{message} ({status} {code})")
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after = retry_after


class UnreachableError(SplitcoreError):
    """No answer came: nobody listens, the connection broke, or the time was over.

    Whether the call has been carried out is not known.
    """


class AnswerError(SplitcoreError):
    """An answer, or a frame, is not what the protocol says."""


class SessionError(SplitcoreError):
    """A session of a worker has ended.

    A daemon that takes the worker only with something else has said so in `field`, `ours` and `theirs`.
    """

    def __init__(
        self, message: str, *, field: str | None = None, ours: str = "", theirs: str = "", permanent: bool = False
    ) -> None:
        """Keep why.

        Args:
            message: For people.
            field: What a refusal is about; None for another end.
            ours: What the daemon has or wants.
            theirs: What the worker has.
            permanent: Whether a refusal is for good, so that to try again is in vain.
        """
        super().__init__(message)
        self.permanent = permanent
        self.field = field
        self.ours = ours
        self.theirs = theirs
