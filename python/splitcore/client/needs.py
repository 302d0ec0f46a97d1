"""Finds httpx2, which not everybody who schedules needs."""

from typing import TYPE_CHECKING, Any

try:
    import httpx2 as httpx
except ImportError as error:
    raise ImportError("the clients need httpx2: pip install 'splitcore[client]'") from error

from splitcore.errors import wrong

if TYPE_CHECKING:
    from splitcore.client.calls import Call

__all__ = ["checked", "httpx", "unreachable"]


def checked(url: str) -> str:
    """Look whether something is an address.

    Args:
        url: Of a service.

    Returns:
        The same.

    Raises:
        ConfigError: If it is no address of HTTP.
    """
    try:
        read = httpx.URL(url)
    except httpx.InvalidURL:
        read = httpx.URL()
    if read.scheme not in ("http", "https") or not read.host:
        raise wrong("url", "http://host:port", url)
    return url


def unreachable(call: "Call[Any]", url: str, error: httpx.TransportError) -> str:
    """Say that no answer came.

    Args:
        call: That was made.
        url: Of the service.
        error: Why.

    Returns:
        A message for people.
    """
    return f"{call.method} {call.path} at {url}: {str(error) or type(error).__name__}"
