"""Every timeout has one name, which the options, the page of the docs and the errors have in common."""

import inspect
import re
from pathlib import Path

import pytest

import splitcore
from splitcore import _native, serve_cli, worker_cli
from splitcore._native import Worker
from test_worker import pool

ROOT = Path(__file__).resolve().parent.parent
LIVE = ROOT / "docs" / "live.md"
PROTOCOL = ROOT / "docs" / "protocol.md"
SESSION = ROOT / "rust" / "wire" / "src" / "session" / "mod.rs"


def told() -> list[tuple[str, str]]:
    """Read the names in the table of the page, each with whose it is."""
    table = LIVE.read_text(encoding="utf-8").split("## Timeouts")[1].split("## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", table, re.MULTILINE)
    return [(name, of.strip("`")) for names, of in rows for name in re.findall(r"`(\w+)`", names)]


def options(command) -> list[str]:
    """List options in seconds."""
    return [name for name in inspect.signature(command).parameters if name.endswith("_s")]


def of_the_protocol() -> list[str]:
    limits = PROTOCOL.read_text(encoding="utf-8").split("## Limits")[1].split("## ")[0]
    return re.findall(r"^\| `(\w+)` \| [\d.]+ s \|", limits, re.MULTILINE)


def test_the_page_names_each_timeout_once_and_no_other():
    names = [name for name, _ in told()]
    assert len(names) == len(set(names))
    expected = dict.fromkeys(options(serve_cli.serve), "serve")
    expected |= dict.fromkeys(options(worker_cli.worker), "worker")
    expected |= dict.fromkeys(of_the_protocol(), "the protocol")
    assert len(expected) == len(options(serve_cli.serve)) + len(options(worker_cli.worker)) + len(of_the_protocol())
    assert dict(told()) == expected
    assert len(of_the_protocol()) >= 5


@pytest.mark.parametrize("option", options(serve_cli.serve))
def test_a_wrong_time_of_the_service_is_told_by_its_name(option):
    with pytest.raises(splitcore.ConfigError) as wrong:
        _native.serve({"listen": "nowhere", option: -1.0})
    assert wrong.value.option == option


# The command itself keeps to `leave_limit_s`; its test of bad values is with those of the other options.
@pytest.mark.parametrize("option", [name for name in options(worker_cli.worker) if name != "leave_limit_s"])
def test_a_wrong_time_of_a_worker_is_told_by_its_name(option):
    given = {"connect": "127.0.0.1:1", "name": "w", "role": "mixed", "model": "m", option: -1.0}
    with pytest.raises(splitcore.ConfigError) as wrong:
        Worker(pool(), **given)
    assert wrong.value.option == option


@pytest.mark.parametrize("limit", [name for name in of_the_protocol() if name != "ping_interval"])
def test_a_session_that_ends_for_a_limit_names_it(limit):
    # What each of them does is tested where the sessions are.
    errors = re.findall(r'#\[error\("(.*?)"', SESSION.read_text(encoding="utf-8"))
    assert [text for text in errors if f" {limit} ({{}} ms)" in text]
