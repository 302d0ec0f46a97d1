"""Finds httpx2, which not everybody who schedules needs."""

try:
    import httpx2 as httpx
except ImportError as error:
    raise ImportError("the clients need httpx2: pip install 'splitcore[client]'") from error

from splitcore.errors import wrong

__all__ = ["checked", "httpx"]


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
