"""What is wrong with the words of a command line, told as any other option out of range."""

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

import typer
import typer.main

from splitcore.units import OptionError

__all__ = ["check_repeated", "told"]

_ALIKE = 0.75
"""How alike two names are for one to be a slip of the other."""


def check_repeated(app: typer.Typer, words: Sequence[str]) -> None:
    """Find out that no option is given twice that takes one value: the first would be dropped without a word.

    Args:
        app: With all commands.
        words: Of the command line, without its first.

    Raises:
        OptionError: If one is.
    """
    given: dict[str, list[str]] = {}
    for option, value in _options(app, words):
        given.setdefault(max(option.opts, key=len), []).append(value)
        if option.multiple or option.is_flag:
            given.popitem()
    for name, values in given.items():
        if len(values) > 1:
            raise OptionError(name.removeprefix("--"), "one value", " and ".join(values))


def told(error: typer.TyperException, words: Sequence[str], app: typer.Typer) -> str:
    """Word what typer says of an option as everything else is worded.

    Args:
        error: Of typer's.
        words: Of the command line, without its first.
        app: With all commands.

    Returns:
        One line; empty where help has been printed.
    """
    text = error.format_message()
    if (unknown := re.match(r"No such option: (\S+)", text)) is not None:
        name = unknown[1]
        near = [other for other in re.findall(r"-[-\w]+", text[unknown.end() :]) if _are_alike(name, other)]
        return f"{name} is no option of this command" + (f"; did you mean {' or '.join(near)}?" if near else "")
    wrong = re.match(r"Invalid value for '(--[-\w]+)': (.*)", text, re.DOTALL)
    if wrong is None:
        return text
    name, why = wrong[1], wrong[2]
    values = [value for option, value in _options(app, words) if name in option.opts]
    got = values[-1] if values else "nothing"
    if (known := re.search(r"is not one of (.*?)\.?$", why)) is not None:
        names = re.findall(r"'([^']*)'", known[1])
        return f"{name}: expected {' or '.join(names)}, got {got}"
    for said, expected in (("valid integer", "a whole number"), ("valid number", "a number")):
        if said in why:
            return f"{name}: expected {expected}, got {got}"
    return text


def _are_alike(one: str, other: str) -> bool:
    return SequenceMatcher(None, one, other).ratio() >= _ALIKE


def _options(app: typer.Typer, words: Sequence[str]) -> Iterator[tuple[Any, str]]:
    """Each option that is given, with its value."""
    command: Any = typer.main.get_command(app)
    left = iter(words)
    for word in left:
        if word == "--":
            return
        name, equals, value = word.partition("=")
        option = next((each for each in command.params if name in getattr(each, "opts", ())), None)
        if option is not None and option.param_type_name == "option":
            yield option, value if equals or option.is_flag else next(left, "")
        elif word in getattr(command, "commands", {}):
            command = command.commands[word]
