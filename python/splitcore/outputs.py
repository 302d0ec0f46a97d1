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
        if path.is_dir():
            raise OptionError(option, "a file", f"the folder {path}")
        if not os.access(path.parent, os.W_OK):
            raise OptionError(option, "a file in a folder that can be written", str(path))
        if path in self._writers:
            raise OptionError(option, "a file of its own", str(path))
        self._writers[path] = writer

    def write(self) -> None:
        """Write all files."""
        drafts = {path: path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}") for path in self._writers}
        try:
            for path, writer in self._writers.items():
                writer(drafts[path])
            for path, draft in drafts.items():
                draft.replace(path)
        finally:
            for draft in drafts.values():
                draft.unlink(missing_ok=True)
