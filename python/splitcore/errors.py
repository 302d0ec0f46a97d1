"""Makes the exceptions of arguments that Python checks, as the native module makes its own."""

from splitcore._native import ConfigError

__all__ = ["wrong"]


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
