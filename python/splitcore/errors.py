"""Makes the exceptions of arguments that Python checks, as the native module makes its own."""

from collections.abc import Sequence

from splitcore._native import ConfigError, SplitcoreError

__all__ = ["ProcessError", "wrong"]


class ProcessError(SplitcoreError):
    """A process that was started has not done what it should."""

    def __init__(self, message: str, said: Sequence[str]) -> None:
        """Keep what it has said.

        Args:
            message: Which process, and what has happened.
            said: The last lines of its log.
        """
        super().__init__("\n".join([f"{message}:", *said]) if said else f"{message}: it said nothing")
        self.message = message
        self.said = said


def wrong(option: str, expected: str, got: object) -> ConfigError:
    """Make the error of an option out of range.

    Args:
        option: The argument's name.
        expected: What would have been accepted.
        got: What was given.

    Returns:
        The exception, to be raised.
    """
    error = ConfigError(f"{option}: expected {expected}, got {got}")
    error.option, error.expected, error.got = option, expected, str(got)
    return error
