"""Writes the files of a run: all of them or none."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from splitcore.units import OptionError

__all__ = ["STDOUT", "Outputs", "dump"]

STDOUT = Path("-")


def dump(value: object) -> str:
    """Write a value as JSON, for people too.

    Args:
        value: Plain data.

    Returns:
        The text, without a line end.
    """
    return json.dumps(value, indent=2, allow_nan=False)


class Outputs:
    """The files that a command was asked for.

    Folders are checked when a file is registered, before the run. `write` makes every file beside its place first
    and renames them last, so a failure leaves nothing behind and an older file whole.
    """

    def __init__(self) -> None:
        """Start with no files."""
        self._writers: dict[Path, Callable[[Path], object]] = {}
        self._folders: set[Path] = set()

    def add(self, option: str, path: Path | None, writer: Callable[[Path], object]) -> None:
        """Register a file.

        Args:
            option: The option that names it, without dashes.
            path: Where it goes; None is ignored.
            writer: Called with the path to write to, which has the same suffix.

        Raises:
            OptionError: If the file cannot be put there, or two options name it.
        """
        if path is None:
            return
        if not path.parent.is_dir():
            raise OptionError(option, "a file in an existing folder", str(path))
        # Renaming over a device would take it away.
        if path.exists() and not path.is_file():
            raise OptionError(option, "an ordinary file", str(path))
        if path in self._writers:
            raise OptionError(option, "a file of its own", str(path))
        try:
            _draft(path).touch()
            _draft(path).unlink()
        except OSError as error:
            raise OptionError(option, "a file that can be written", f"{path} ({error.strerror})") from None
        self._writers[path] = writer

    def add_folder(self, option: str, path: Path | None, writer: Callable[[Path], object]) -> None:
        """Register a folder of files; it is made unless it is there, and what else it holds stays.

        Args:
            option: The option that names it, without dashes.
            path: Where it goes; None is ignored.
            writer: Called with an empty folder to write to.

        Raises:
            OptionError: If the folder cannot be put there, or another option names it.
        """
        if path is None:
            return
        if not path.parent.is_dir():
            raise OptionError(option, "a folder in an existing folder", str(path))
        if path.exists() and not path.is_dir():
            raise OptionError(option, "a folder", str(path))
        if path in self._writers:
            raise OptionError(option, "a folder of its own", str(path))
        try:
            _draft(path).mkdir()
            _draft(path).rmdir()
        except OSError as error:
            raise OptionError(option, "a folder that can be written", f"{path} ({error.strerror})") from None
        self._writers[path] = writer
        self._folders.add(path)

    def write(self) -> None:
        """Write all files."""
        try:
            for path, writer in self._writers.items():
                if path in self._folders:
                    _draft(path).mkdir()
                writer(_draft(path))
            for path in self._writers:
                _place(_draft(path), path)
        finally:
            for path in self._writers:
                if path in self._folders:
                    shutil.rmtree(_draft(path), ignore_errors=True)
                else:
                    _draft(path).unlink(missing_ok=True)


def _place(draft: Path, path: Path) -> None:
    """Rename a draft; of a folder that is there already, file by file."""
    if path.is_dir():
        for file in sorted(draft.iterdir()):
            file.replace(path / file.name)
    else:
        draft.replace(path)


def _draft(path: Path) -> Path:
    """Name a file beside `path`, with its suffix, that no other process has."""
    return path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
