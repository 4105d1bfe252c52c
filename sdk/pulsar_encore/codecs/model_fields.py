"""The fields of classes that describe JSON objects.

pydantic and msgspec are optional: a class of theirs exists only if the program has imported them.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import (
    Annotated,
    Any,
    Final,
    NamedTuple,
    NotRequired,
    Required,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from ..errors import ConfigurationError

#: A field without a default.
MISSING: Final = dataclasses.MISSING


class ModelField(NamedTuple):
    """One field of a model.

    Attributes:
        name: The attribute, or the key of a TypedDict.
        key: The key in JSON.
        type: The annotation, with `Annotated`.
        required: False if the class has a default for it.
        default: The default, if it is a plain value; else `MISSING`.
        settable: False if the constructor does not take it.
    """

    name: str
    key: str
    type: Any
    required: bool
    default: Any = MISSING
    settable: bool = True


def is_pydantic(model: Any) -> bool:
    """Return True for a pydantic model or a pydantic dataclass."""
    origin = get_origin(model) or model
    return _derives(origin, "pydantic", "BaseModel") or (
        isinstance(origin, type) and "__pydantic_validator__" in origin.__dict__
    )


def is_struct(model: Any) -> bool:
    """Return True for a msgspec Struct."""
    return _derives(get_origin(model) or model, "msgspec", "Struct")


def _derives(model: Any, module: str, name: str) -> bool:
    base = getattr(sys.modules.get(module), name, None)
    return isinstance(base, type) and isinstance(model, type) and issubclass(model, base)


def is_record(model: Any) -> bool:
    """Return True for a class with fields: each kind that `fields_of` knows."""
    return (
        is_pydantic(model)
        or is_struct(model)
        or is_typeddict(model)
        or (isinstance(model, type) and dataclasses.is_dataclass(model))
    )


def fields_of(model: Any) -> list[ModelField]:
    """Return the fields of a class for which `is_record` is true.

    Raises:
        ConfigurationError: if an annotation names a class that cannot be found.
    """
    if is_pydantic(model):
        return list(_of_pydantic(model))
    if is_struct(model):
        return list(_of_struct(model))
    hints = _hints(model)
    if is_typeddict(model):
        return [_of_key(model, name, hint) for name, hint in hints.items()]
    return list(_of_dataclass(model, hints))


def _hints(model: Any) -> dict[str, Any]:
    try:
        return get_type_hints(model, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigurationError(
            f"the annotations of {model.__name__} cannot be resolved: {error}. Define the classes "
            "that it names at the top level of a module"
        ) from error


def _of_key(model: Any, name: str, hint: Any) -> ModelField:
    required = name in model.__required_keys__
    # Under `from __future__ import annotations` the class itself does not see these.
    while get_origin(hint) in (Required, NotRequired):
        required = get_origin(hint) is Required
        [hint] = hint.__args__
    return ModelField(name, name, hint, required)


def _of_dataclass(model: Any, hints: dict[str, Any]) -> Iterator[ModelField]:
    for each in dataclasses.fields(model):
        has_default = each.default is not MISSING or each.default_factory is not MISSING
        yield ModelField(
            each.name, each.name, hints[each.name], not has_default, each.default, each.init
        )


def _of_pydantic(model: Any) -> Iterator[ModelField]:
    fields = getattr(model, "model_fields", None)
    if fields is None:
        fields = model.__pydantic_fields__  # of a pydantic dataclass
    for name, each in fields.items():
        annotation = each.annotation
        if each.metadata:
            annotation = Annotated[(annotation, *each.metadata)]
        required = each.is_required()
        plain = not required and each.default_factory is None
        yield ModelField(
            name,
            each.serialization_alias or each.alias or name,
            annotation,
            required,
            each.default if plain else MISSING,
        )


def _of_struct(model: Any) -> Iterator[ModelField]:
    msgspec = sys.modules["msgspec"]
    for each in msgspec.structs.fields(model):
        has_default = each.default is not msgspec.NODEFAULT
        has_factory = each.default_factory is not msgspec.NODEFAULT
        yield ModelField(
            each.name,
            each.encode_name,
            each.type,
            not has_default and not has_factory,
            each.default if has_default else MISSING,
        )
