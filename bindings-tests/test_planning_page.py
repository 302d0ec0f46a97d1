"""The commands of docs/planning.md run, print what the page says, and make its pictures.

``BLESS=1`` writes outputs and pictures of the page anew.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parent.parent / "docs/planning.md"
BLESS = os.environ.get("BLESS") == "1"
FILE = re.compile(r"^```(?:python|toml)\n(?P<text># (?P<name>\S+)\n.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(
    r"^```bash\n(?P<commands>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```$)?", re.MULTILINE | re.DOTALL
)
PICTURE = re.compile(r"^!\[.+\]\((?P<path>planning/.+\.png)\)$", re.MULTILINE)
PICTURE_BYTES_MAX = 200_000
# A block that ends so has the beginning of what is printed.
REST = "..."


def _commands():
    """Each command, with its block on the page if that says what the command prints."""
    commands = []
    for block in COMMANDS.finditer(PAGE.read_text(encoding="utf-8")):
        *others, last = block["commands"].replace("\\\n", " ").splitlines()
        commands += [(line, None) for line in others]
        commands.append((last, None if block["output"] is None else block))
    return [pytest.param(shlex.split(line)[1:], block, id=" ".join(line.split())) for line, block in commands]


def _pictures(arguments):
    """The pictures of the page that a command makes."""
    if "--plot" not in arguments:
        return []
    made = Path("planning", arguments[arguments.index("--plot") + 1])
    shown = [Path(match["path"]) for match in PICTURE.finditer(PAGE.read_text(encoding="utf-8"))]
    return [picture for picture in shown if made in (picture, picture.parent)]


def _run(arguments, folder):
    environment = {**os.environ, "COLUMNS": "110"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files of the page, and what its commands add to them."""
    folder = tmp_path_factory.mktemp("planning")
    for match in FILE.finditer(PAGE.read_text(encoding="utf-8")):
        (folder / match["name"]).write_text(match["text"], encoding="utf-8")
    done = _run(["trace.py"], folder)
    assert done.returncode == 0, done.stderr
    return folder


def _told(done):
    return "".join(f"{line.rstrip()}\n" for line in (done.stdout + done.stderr).splitlines()).strip("\n") + "\n"


def _shortened(told, output):
    lines = output.splitlines()
    if lines[-1:] != [REST]:
        return told
    return "".join(f"{line}\n" for line in [*told.splitlines()[: len(lines) - 1], REST])


@pytest.mark.parametrize(("arguments", "block"), _commands())
def test_command_prints_what_the_page_says(arguments, block, folder):
    done = _run(["-m", "splitcore.cli", *arguments], folder)
    told = _told(done)
    assert done.returncode == (2 if "splitcore: infeasible: " in told else 0), done.stderr
    _check_pictures(_pictures(arguments), folder)
    if block is None:
        return
    told = _shortened(told, block["output"])
    if BLESS:
        page = PAGE.read_text(encoding="utf-8")
        assert page.count(block[0]) == 1
        said = block[0].removesuffix(f"{block['output']}```")
        PAGE.write_text(page.replace(block[0], f"{said}{told}```"), encoding="utf-8")
    else:
        assert block["output"] == told


def _check_pictures(pictures, folder):
    for picture in pictures:
        made, kept = folder / picture.relative_to("planning"), PAGE.parent / picture
        assert made.read_bytes().startswith(b"\x89PNG")
        if BLESS:
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(made, kept)
        assert 0 < kept.stat().st_size < PICTURE_BYTES_MAX


def test_the_page_has_files_commands_and_outputs():
    page = PAGE.read_text(encoding="utf-8")
    names = {match["name"] for match in FILE.finditer(page)}
    assert {"trace.py", "machines.toml", "slo.toml"} <= names
    assert sum(command.values[1] is not None for command in _commands()) >= 3
    made = [picture for command in _commands() for picture in _pictures(command.values[0])]
    assert sorted(f"{picture}" for picture in made) == sorted(match["path"] for match in PICTURE.finditer(page))
