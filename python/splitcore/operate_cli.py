"""The commands of who operates a service: ``splitcore machines`` and ``drain``."""

import json
from typing import Annotated, Any

import typer

from splitcore import tables
from splitcore.options import option
from splitcore.service_options import SERVICE_URL, SecretFile, Timeout, TlsCa, Url, connected

__all__ = ["drain", "machines"]

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Of a machine, as splitcore machines tells it.")]
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
        _print_json([_plain(row) for row in rows])
    elif rows:
        tables.console().print(machine_table(rows))
    else:
        tables.console().print("no machine is there")


def drain(
    name: _Name,
    url: Url = SERVICE_URL,
    *,
    as_json: _Json = False,
    secret_file: SecretFile = None,
    tls_ca: TlsCa = None,
    timeout: Timeout = 5.0,
) -> None:
    """Give a machine no more work, so that it can be stopped when what it has is done."""
    with connected(url, secret_file, tls_ca, timeout) as client:
        is_draining = client.drain(name)
    if as_json:
        _print_json({"draining": is_draining})
    else:
        tables.console().print(f"{tables.printable(name)} gets no more work", soft_wrap=True)


def _plain(row: object) -> Any:
    from splitcore.client.reading import plain

    return plain(row)


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2))
