"""Errors: this package's own, those with the names of `pulsar.exceptions`, and result codes."""

from . import encore_errors, pulsar_errors
from .encore_errors import *  # noqa: F403
from .pulsar_errors import *  # noqa: F403
from .pulsar_errors import exception_of_result as exception_of_result
from .result import Result as Result

__all__ = ["Result"]
__all__ += encore_errors.__all__
__all__ += pulsar_errors.__all__

# Users import the errors from here, so tracebacks, pickles and the evidence of letters name this
# module and not the file that defines the class.
for _name in __all__:
    if isinstance(_class := globals()[_name], type):
        _class.__module__ = __name__
