"""Reads plain data into frozen dataclasses by their annotations."""

import dataclasses
import functools
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from splitcore.client.errors import AnswerError

__all__ = ["plain", "read"]

T = TypeVar("T")


def read(kind: type[T], data: object, where: str = "answer") -> T:
    """Read data as a dataclass; fields that it does not name are passed over.

    Args:
        kind: The dataclass, or another type of its fields.
        data: As it comes out of JSON or MessagePack.
        where: Names the data in errors.

    Returns:
        The value.

    Raises:
        AnswerError: If a field is missing or is something else.
    """
    value: T = _read(kind, data, where)
    return value


def plain(value: object) -> Any:
    """Make plain data of dataclasses; a field's name may end in ``_`` where Python needs it for itself.

    Args:
        value: A dataclass, a list of them, or plain data.

    Returns:
        Dicts, lists and what is in them.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name.rstrip("_"): plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    return value


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _read(kind: Any, data: object, where: str) -> Any:
    origin = get_origin(kind)
    if kind is Any:
        return data
    if origin in (Union, types.UnionType):
        if data is None:
            return None
        (kind,) = (part for part in get_args(kind) if part is not types.NoneType)
        return _read(kind, data, where)
    if origin is tuple:
        (item, _) = get_args(kind)
        return tuple(_read(item, part, f"{where}[{at}]") for at, part in enumerate(_as(list, data, where)))
    if origin is dict:
        (_, item) = get_args(kind)
        return {name: _read(item, part, f"{where}.{name}") for name, part in _as(dict, data, where).items()}
    if origin is Literal:
        # Later versions of a service may say more.
        return _as(str, data, where)
    if dataclasses.is_dataclass(kind):
        return _read_fields(kind, _as(dict, data, where), where)
    return _as(kind, data, where)


def _read_fields(kind: Any, data: dict[str, object], where: str) -> Any:
    values = {}
    for field in dataclasses.fields(kind):
        name = field.name.rstrip("_")
        if name in data:
            values[field.name] = _read(_hints(kind)[field.name], data[name], f"{where}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise AnswerError(f"{where}: expected a field {name}, got {', '.join(data) or 'none'}")
    return kind(**values)


def _as(kind: Any, data: object, where: str) -> Any:
    # JSON writes 1.0 as it likes, and Python takes a bool for a number.
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if isinstance(data, kind) and (kind is bool or not isinstance(data, bool)):
        return data
    raise AnswerError(f"{where}: expected {kind.__name__}, got {type(data).__name__}")
