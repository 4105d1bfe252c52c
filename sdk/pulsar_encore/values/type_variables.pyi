from typing import Any

from typing_extensions import TypeVar

T = TypeVar("T", default=Any)
T_co = TypeVar("T_co", default=Any, covariant=True)
T_contra = TypeVar("T_contra", default=Any, contravariant=True)
