"""Writes the files of a run: all of them or none, and never over one that the run reads."""

import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from splitcore.options import BUILT_IN_TRACES
from splitcore.units import OptionError

__all__ = ["Outputs", "dump"]

STDOUT = "-"
"""What standard output is called where a file could be named."""


def dump(value: object) -> str:
    """Write a value as JSON, for people too.

    Args:
        value: Plain data.

    Returns:
        The text, without a line end.
    """
    return json.dumps(value, indent=2, allow_nan=False)


@dataclass(frozen=True)
class _Output:
    """A file, a folder of files, or what goes to standard output."""

    option: str
    given: Path
    """As the user wrote it."""
    path: Path | None
    """Where it really lies, links followed; None is standard output."""
    draft: Path
    """Written first, then renamed; for standard output the name of a file in a temporary folder."""
    writer: Callable[[Path], object]
    is_folder: bool = False


class Outputs:
    """The files that a command was asked for.

    Files are checked when they are registered, before the run. `write` makes every file beside its place first and
    renames them last, so a failure leaves nothing behind and an older file whole. Which file a name means is decided by
    what it leads to: no spelling, link or descriptor makes one file both an input and an output, or two outputs.
    """

    def __init__(self) -> None:
        """Start with no files."""
        self._outputs: list[_Output] = []
        self._inputs: dict[object, str] = {}

    @property
    def use_stdout(self) -> bool:
        """Whether one of them goes to standard output, so that nothing else may be printed there."""
        return any(output.path is None for output in self._outputs)

    def reads(self, option: str, path: Path | str | None) -> None:
        """Register a file that the command reads, which no output may be.

        Args:
            option: What names it, as the user writes it.
            path: The file, which need not be there; None is ignored.

        Raises:
            OptionError: If an output is this file.
        """
        if path is None:
            return
        identity = _identity(Path(path))
        self._inputs.setdefault(identity, option)
        for output in self._outputs:
            if output.path is not None and _identity(output.path) == identity:
                raise self._is_read(output.option, output.given, identity)

    def reads_run(self, run: Mapping[str, Any]) -> None:
        """Register the files that the options of a run name.

        Args:
            run: Keywords of `splitcore.simulate`.

        Raises:
            OptionError: As `reads`.
        """
        for option in ("profile", "machines", "tokenizer", "classes"):
            self.reads(f"--{option}", run.get(option))
        if run.get("trace") not in BUILT_IN_TRACES:
            self.reads("--trace", run.get("trace"))

    def appends(self, option: str, path: Path | None) -> None:
        """Register a file that the command both reads and adds to.

        Args:
            option: The option that names it, without dashes.
            path: The file, which need not be there; None is ignored.

        Raises:
            OptionError: If another option names it or it is no file.
        """
        if path is None:
            return
        if str(path) == STDOUT or (path.exists() and not path.is_file()):
            raise OptionError(option, "an ordinary file", str(path))
        if (identity := _identity(path)) in self._inputs:
            raise self._is_read(option, path, identity)
        self.reads(f"--{option}", path)

    def json(self, option: str, path: Path | None, value: Callable[[], object]) -> None:
        """Register a file of JSON, or ``-`` for standard output.

        Args:
            option: The option that names it, without dashes.
            path: Where it goes; None is ignored.
            value: Called after the run, for what to write.

        Raises:
            OptionError: As `add`.
        """
        self.add(option, path, lambda file: file.write_text(f"{dump(value())}\n", encoding="utf-8"), or_stdout=True)

    def add(self, option: str, path: Path | None, writer: Callable[[Path], object], *, or_stdout: bool = False) -> None:
        """Register a file.

        Args:
            option: The option that names it, without dashes.
            path: Where it goes; None is ignored.
            writer: Called with the path to write to, which has the same suffix.
            or_stdout: Whether ``-`` is standard output; it names no file in any case.

        Raises:
            OptionError: If the file cannot be put there, is an input, or two options name it.
        """
        if path is None:
            return
        if str(path) == STDOUT:
            self._add_stdout(option, path, writer, or_stdout)
            return
        if not path.parent.is_dir():
            raise OptionError(option, "a file in an existing folder", str(path))
        # Renaming over a device would take it away.
        if path.exists() and not path.is_file():
            raise OptionError(option, "an ordinary file", str(path))
        output = self._checked(_Output(option, path, *_places(option, path), writer))
        try:
            output.draft.touch()
            output.draft.unlink()
        except OSError as error:
            raise OptionError(option, "a file that can be written", f"{path} ({error.strerror})") from None
        self._outputs.append(output)

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
        if str(path) == STDOUT or (path.exists() and not path.is_dir()):
            raise OptionError(option, "a folder", str(path))
        output = self._checked(_Output(option, path, *_places(option, path), writer, is_folder=True))
        try:
            output.draft.mkdir()
            output.draft.rmdir()
        except OSError as error:
            raise OptionError(option, "a folder that can be written", f"{path} ({error.strerror})") from None
        self._outputs.append(output)

    def write(self) -> None:
        """Write all files."""
        printed: list[str] = []
        try:
            for output in self._outputs:
                if output.path is None:
                    printed.append(_printed(output))
                    continue
                if output.is_folder:
                    output.draft.mkdir()
                output.writer(output.draft)
            self._check_folders()
            for output in self._outputs:
                _place(output)
        finally:
            for output in self._outputs:
                if output.is_folder:
                    shutil.rmtree(output.draft, ignore_errors=True)
                elif output.path is not None:
                    output.draft.unlink(missing_ok=True)
        # It cannot be taken back, so it comes when nothing else can fail.
        sys.stdout.write("".join(printed))

    def _add_stdout(self, option: str, path: Path, writer: Callable[[Path], object], or_stdout: bool) -> None:
        if not or_stdout:
            raise OptionError(option, "the name of a file, which - is not (./- is)", str(path))
        other = next((output.option for output in self._outputs if output.path is None), None)
        if other is not None:
            raise OptionError(option, f"a file, as --{other} has standard output", str(path))
        self._outputs.append(_Output(option, path, None, Path(option), writer))

    def _checked(self, output: _Output) -> _Output:
        """Find out that an output is no input and no other output."""
        identity = _identity(output.path or output.given)
        if identity in self._inputs:
            raise self._is_read(output.option, output.given, identity)
        if any(other.path is not None and _identity(other.path) == identity for other in self._outputs):
            kind = "a folder of its own" if output.is_folder else "a file of its own"
            raise OptionError(output.option, kind, str(output.given))
        if identity in _standard_streams():
            expected = "a file other than the one that standard output goes to"
            raise OptionError(output.option, expected, str(output.given))
        return output

    def _is_read(self, option: str, given: Path, identity: object) -> OptionError:
        return OptionError(option, f"a file other than that of {self._inputs[identity]}, which is read", str(given))

    def _check_folders(self) -> None:
        """Find out that no file in a folder takes the place of an input."""
        for output in self._outputs:
            if output.path is None or not output.is_folder:
                continue
            for file in sorted(output.draft.iterdir()):
                identity = _identity(output.path / file.name)
                if identity in self._inputs:
                    raise self._is_read(output.option, output.given, identity)


def _places(option: str, path: Path) -> tuple[Path, Path]:
    """Where an output really lies, and its draft beside it, which no other process has."""
    try:
        real = path.resolve()
    except (OSError, RuntimeError):
        raise OptionError(option, "a file, not links in a circle", str(path)) from None
    if not real.parent.is_dir():
        raise OptionError(option, "a file in an existing folder", f"{path}, a link to {real}")
    return real, real.with_name(f".{real.stem}.{os.getpid()}{real.suffix}")


def _identity(path: Path) -> object:
    """What all names of one file have in common; of one that is not there, where it would be."""
    try:
        found = path.stat()
    except OSError:
        return path.resolve()
    return found.st_dev, found.st_ino


def _standard_streams() -> set[object]:
    """The ordinary files that standard output and standard error go to."""
    streams: set[object] = set()
    for descriptor in (1, 2):
        try:
            found = os.fstat(descriptor)
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode):
            streams.add((found.st_dev, found.st_ino))
    return streams


def _printed(output: _Output) -> str:
    """Make what goes to standard output."""
    with tempfile.TemporaryDirectory() as folder:
        draft = folder / output.draft
        output.writer(draft)
        return draft.read_text(encoding="utf-8")


def _place(output: _Output) -> None:
    """Put a draft where it belongs; of a folder that is there already, file by file."""
    if output.path is None:
        return
    if output.is_folder and output.path.is_dir():
        for file in sorted(output.draft.iterdir()):
            file.replace(output.path / file.name)
    else:
        output.draft.replace(output.path)
