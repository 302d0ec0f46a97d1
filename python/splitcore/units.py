"""Reads the values of command-line options that have a unit."""

import math
import re

__all__ = ["OptionError", "bandwidth", "power", "size"]

_BYTES_PER_UNIT = {
    "": 1.0,
    "B": 1.0,
    **{f"{prefix}B": 1000.0**power for power, prefix in enumerate(("k", "M", "G", "T"), start=1)},
    **{f"{prefix}iB": 1024.0**power for power, prefix in enumerate(("K", "M", "G", "T"), start=1)},
    **{f"{prefix}b": 1000.0**power / 8 for power, prefix in enumerate(("k", "M", "G", "T"), start=1)},
}
_BANDWIDTH = re.compile(r"(?P<number>\d+(\.\d*)?([eE][+-]?\d+)?)\s*(?P<unit>[kKMGT]?i?[bB]?)(?P<per>/s|ps)?")

_SIZE = re.compile(r"(?P<number>\d+(\.\d*)?)\s*(?P<unit>[kKMGT]?i?B)?")
_POWER = re.compile(r"(?P<number>\d+(\.\d*)?([eE][+-]?\d+)?)\s*(?P<unit>[kM]?W)?")
_WATTS_PER_UNIT = {None: 1.0, "W": 1.0, "kW": 1e3, "MW": 1e6}


class OptionError(Exception):
    """A command-line option that cannot be read."""

    def __init__(self, option: str, expected: str, got: str) -> None:
        """Word it as the native errors do."""
        super().__init__(f"--{option}: expected {expected}, got {got}")


def bandwidth(text: str | None, option: str = "link-bandwidth") -> float | None:
    """Read ``200GiB/s``, ``25GB/s``, ``400Gbps``, ``400Gb/s`` or a plain number of bytes per second.

    Args:
        text: The option's value; None stays None.
        option: Which option, for the error.

    Returns:
        Bytes per second.

    Raises:
        OptionError: If it is anything else, or not above zero.
    """
    if text is None:
        return None
    match = _BANDWIDTH.fullmatch(text.strip())
    if match is not None:
        number, unit, per = float(match["number"]), match["unit"], match["per"]
        # A unit is of a rate and a rate has a unit: neither "200GiB" nor "200/s" says what is meant.
        if unit in _BYTES_PER_UNIT and bool(unit) == bool(per) and 0 < number < math.inf:
            return number * _BYTES_PER_UNIT[unit]
    raise OptionError(option, "a rate as 200GiB/s, 25GB/s or 400Gbps, above zero", text)


def power(text: str | None) -> float | None:
    """Read ``250kW``, ``1.2MW``, ``6500W`` or a plain number of watts.

    Args:
        text: The option's value; None stays None.

    Returns:
        Watts.

    Raises:
        OptionError: If it is anything else, or not above zero.
    """
    if text is None:
        return None
    match = _POWER.fullmatch(text.strip())
    if match is not None:
        watts = float(match["number"]) * _WATTS_PER_UNIT[match["unit"]]
        if 0 < watts < math.inf:
            return watts
    raise OptionError("power-limit", "a power as 250kW, 1.2MW or 6500W, above zero", text)


def size(text: str, option: str) -> int:
    """Read ``2GiB``, ``1.5GB``, ``512MiB`` or a plain number of bytes.

    Args:
        text: The option's value.
        option: Which option, for the error.

    Returns:
        Bytes.

    Raises:
        OptionError: If it is anything else, or not above zero.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is not None and (match["unit"] or "") in _BYTES_PER_UNIT:
        bytes_given = float(match["number"]) * _BYTES_PER_UNIT[match["unit"] or ""]
        if 1 <= bytes_given < 1 << 62:
            return int(bytes_given)
    raise OptionError(option, "a size as 2GiB, 512MiB or bytes, above zero", text)
