"""Finds httpx, which not everybody who schedules needs."""

try:
    import httpx
except ImportError as error:
    raise ImportError("the clients need httpx: pip install 'splitcore[client]'") from error

__all__ = ["httpx"]
