"""Options of commands that talk with a service: its address, the secret that it wants, whom to trust."""

import ssl
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from splitcore._native import SplitcoreError
from splitcore.errors import wrong
from splitcore.options import option

if TYPE_CHECKING:
    from splitcore.client import PlacementClient

__all__ = ["SERVICE_URL", "SecretFile", "Timeout", "TlsCa", "Url", "connected", "secret_in", "trusting"]

SERVICE_URL = "http://127.0.0.1:8090"

_service = partial(option, "Service")

Url = Annotated[str, typer.Argument(metavar="URL", help="Of a splitcore service.")]
SecretFile = Annotated[Path | None, _service("FILE", "Key or secret that every request bears.")]
TlsCa = Annotated[
    Path | None, _service("FILE", "For https: certificates to trust, PEM; by default SSL_CERT_FILE, or the system's.")
]
Timeout = Annotated[float, _service("S", "For each answer.")]


def secret_in(file: Path | None) -> str | None:
    """Read a secret as the service reads it.

    Args:
        file: That holds it.

    Returns:
        The secret; None without a file.

    Raises:
        ConfigError: If there is none in it.
    """
    if file is None:
        return None
    try:
        secret = file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise wrong("secret_file", "a file with a secret", f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise wrong("secret_file", "a file with a secret", f"{file}: not UTF-8") from None
    if not secret.isascii() or not secret.isprintable():
        raise wrong("secret_file", "a file with a secret of one line of ASCII, as a header can bear it", file)
    if not secret:
        raise wrong("secret_file", "a file with a secret", f"{file}: empty")
    return secret


def trusting(ca: Path | None) -> ssl.SSLContext | None:
    """Trust certificates of a file, and no others.

    Args:
        ca: In PEM.

    Returns:
        How to speak TLS; None without a file.

    Raises:
        ConfigError: If there is none in it.
    """
    if ca is None:
        return None
    try:
        context = ssl.create_default_context(cafile=ca)
    except ssl.SSLError:
        raise wrong("tls_ca", "a file of certificates in PEM", f"{ca}: no certificate in it") from None
    except OSError as error:
        raise wrong("tls_ca", "a file of certificates in PEM", f"{ca}: {error.strerror}") from None
    return context


def connected(url: str, secret_file: Path | None, tls_ca: Path | None, timeout_s: float) -> "PlacementClient":
    """Make the client of a command.

    Args:
        url: Of the service.
        secret_file: That holds its secret.
        tls_ca: The certificates to trust.
        timeout_s: For each answer.

    Returns:
        The client, to be closed.

    Raises:
        ConfigError: If an option is wrong.
        SplitcoreError: If httpx2 is not installed.
    """
    if not 0 < timeout_s < float("inf"):
        raise wrong("timeout", "more than 0 seconds", timeout_s)
    secret, tls = secret_in(secret_file), trusting(tls_ca)
    try:
        from splitcore.client import PlacementClient
    except ImportError as error:
        raise SplitcoreError(str(error)) from None
    return PlacementClient(url.rstrip("/"), secret=secret, timeout_s=timeout_s, tls=tls)
