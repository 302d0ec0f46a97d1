"""The examples of the README, and of the page on transfers, run."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
TRANSFERS = ROOT / "docs/transfer.md"
BLOCK = re.compile(r"^```(?P<language>python|bash)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def _blocks(language, page=README):
    text = page.read_text(encoding="utf-8")
    return [
        pytest.param(match["code"], id=f"{page.stem}, line {text.count(chr(10), 0, match.start()) + 2}")
        for match in BLOCK.finditer(text)
        if match["language"] == language
    ]


def _commands():
    lines = [line for block in _blocks("bash") for line in block.values[0].replace("\\\n", " ").splitlines()]
    return [
        pytest.param(shlex.split(line, comments=True)[1:], id=" ".join(line.split()))
        for line in lines
        if line.startswith("splitcore ")
    ]


def _run(arguments, folder):
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=55, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One for all examples: a later command may read what an earlier one wrote."""
    return tmp_path_factory.mktemp("readme")


@pytest.mark.parametrize("code", [*_blocks("python"), *_blocks("python", TRANSFERS)])
def test_python_example_runs(code, folder):
    _run(["-c", code], folder)


@pytest.mark.parametrize("arguments", _commands())
def test_command_runs(arguments, folder, request):
    """A command runs as it is written, but on few requests, and with public data from where it is kept."""
    words = []
    for word in arguments:
        is_data = "/data/" in f"/{word}" and word.endswith((".csv", ".jsonl"))
        words.append(str(request.getfixturevalue("data_dir") / Path(word).name) if is_data else word)
    # An option is given once: what the line has of its own gives way.
    for option, few in {"simulate": {"--requests-limit": "50"}, "swarm": {"--seeds": "20"}}.get(words[0], {}).items():
        if option in words:
            words[words.index(option) + 1] = few
        else:
            words += [option, few]
    _run(["-m", "splitcore.cli", *words], folder)


def test_the_readme_has_examples_of_both_kinds():
    assert _blocks("python")
    assert list(_commands())
