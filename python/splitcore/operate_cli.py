"""The commands of who operates a service: ``splitcore machines``, ``requests``, ``drain`` and ``undrain``."""

import json
from functools import partial
from typing import Annotated

import typer

from splitcore import tables
from splitcore.options import option
from splitcore.service_options import SERVICE_URL, SecretFile, Timeout, TlsCa, Url, connected

__all__ = ["drain", "machines", "requests", "undrain"]

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Of a machine, as splitcore machines tells it.")]
_list = partial(option, "What is listed")
_Json = Annotated[bool, option("Output", "", "Print the service's answer as JSON.", "--json")]


def machines(
    url: Url = SERVICE_URL,
    *,
    as_json: _Json = False,
    secret_file: SecretFile = None,
    tls_ca: TlsCa = None,
    timeout: Timeout = 5.0,
) -> None:
    """List the machines of a service."""
    with connected(url, secret_file, tls_ca, timeout) as client:
        from splitcore.top import machine_table

        rows = client.machines()
    if as_json:
        _print_json(rows)
    elif rows:
        tables.console().print(machine_table(rows))
    else:
        tables.console().print("no machine is there")


def requests(
    url: Url = SERVICE_URL,
    *,
    start: Annotated[int, _list("ID", "From this id on.", "--from")] = 0,
    most: Annotated[int, _list("N", "Requests at most, up to 1000.")] = 100,
    as_json: _Json = False,
    secret_file: SecretFile = None,
    tls_ca: TlsCa = None,
    timeout: Timeout = 5.0,
) -> None:
    """List the live requests of a service, by their ids."""
    with connected(url, secret_file, tls_ca, timeout) as client:
        from splitcore.top import request_table

        page = client.requests(start, most=most)
    if as_json:
        _print_json(page)
        return
    out = tables.console()
    if page.requests:
        out.print(request_table(page.requests))
    out.print(f"{page.live:,} live" + ("" if page.next is None else f", more with --from {page.next}"))


def drain(
    name: _Name,
    url: Url = SERVICE_URL,
    *,
    as_json: _Json = False,
    secret_file: SecretFile = None,
    tls_ca: TlsCa = None,
    timeout: Timeout = 5.0,
) -> None:
    """Give a machine no more work, so that it can be stopped when what it has is done.

    `splitcore undrain` takes it back.
    """
    with connected(url, secret_file, tls_ca, timeout) as client:
        is_draining = client.drain(name)
    if as_json:
        _print_json({"draining": is_draining})
    else:
        tables.console().print(f"{tables.printable(name)} gets no more work", soft_wrap=True)


def undrain(
    name: _Name,
    url: Url = SERVICE_URL,
    *,
    as_json: _Json = False,
    secret_file: SecretFile = None,
    tls_ca: TlsCa = None,
    timeout: Timeout = 5.0,
) -> None:
    """Give a machine work again that was told to drain."""
    with connected(url, secret_file, tls_ca, timeout) as client:
        is_draining = client.undrain(name)
    if as_json:
        _print_json({"draining": is_draining})
    else:
        tables.console().print(f"{tables.printable(name)} gets work again", soft_wrap=True)


def _print_json(value: object) -> None:
    from splitcore.client.reading import plain

    typer.echo(json.dumps(plain(value), indent=2))
