"""Writes the files of a run: all of them or none."""

import os
from collections.abc import Callable
from pathlib import Path

from splitcore.units import OptionError

__all__ = ["Outputs"]


class Outputs:
    """The files that a command was asked for.

    Folders are checked when a file is registered, before the run. `write` makes every file beside its place first
    and renames them last, so a failure leaves nothing behind and an older file whole.
    """

    def __init__(self) -> None:
        """Start with no files."""
        self._writers: dict[Path, Callable[[Path], object]] = {}

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

    def write(self) -> None:
        """Write all files."""
        try:
            for path, writer in self._writers.items():
                writer(_draft(path))
            for path in self._writers:
                _draft(path).replace(path)
        finally:
            for path in self._writers:
                _draft(path).unlink(missing_ok=True)


def _draft(path: Path) -> Path:
    """Name a file beside `path`, with its suffix, that no other process has."""
    return path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
