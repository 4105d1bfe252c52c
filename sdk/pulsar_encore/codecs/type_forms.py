"""Annotations, reduced to the forms that JSON can have."""

from __future__ import annotations

import collections.abc
import types
from typing import Annotated, Any, Final, NewType, Union, get_args, get_origin

LISTS: Final[dict[Any, Any]] = {
    list: list,
    collections.abc.Sequence: list,
    collections.abc.Iterable: list,
    collections.abc.Collection: list,
    tuple: tuple,
    set: set,
    collections.abc.Set: set,
    frozenset: frozenset,
}
MAPS: Final[tuple[Any, ...]] = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_UNIONS: Final = (Union, types.UnionType)


def plain_type(annotation: Any) -> Any:
    """Return an annotation without `Annotated`, `NewType` and type aliases."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif isinstance(annotation, NewType):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":  # `type X = ...`, from Python 3.12
            annotation = annotation.__value__
        else:
            return annotation


def union_parts(annotation: Any) -> tuple[list[Any], bool]:
    """Return the types of a union other than None, and whether None is one."""
    plain = plain_type(annotation)
    if get_origin(plain) not in _UNIONS:
        return ([], True) if plain in (None, type(None)) else ([annotation], False)
    parts: list[Any] = []
    optional = False
    for each in get_args(plain):
        inner, has_none = union_parts(each)
        parts += inner
        optional = optional or has_none
    return parts, optional


def type_name(kind: Any) -> str:
    """Return the name of a type in messages."""
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
