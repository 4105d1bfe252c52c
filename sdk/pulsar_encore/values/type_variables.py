"""The type variables of messages, consumers, readers and producers.

For type checkers they have the default `Any` (PEP 696), which the stub declares: before Python 3.13
`typing.TypeVar` has no default.
"""

from typing import TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)
