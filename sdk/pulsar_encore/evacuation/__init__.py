"""Retiring a host: what waits in its state directory goes on waiting at the broker.

`evacuate` copies each message that waits to the retry-letter topic of its subscription, to be
delivered when it is due there; `evacuation_plan` says beforehand what would go where.
`pulsar-encore state evacuate` is a thin layer over it.
"""

from .moving import evacuate
from .plan import SourcePlan, evacuation_plan
from .report import EvacuationReport, EvacuationStoppedError, NotMoved

__all__ = [
    "EvacuationReport",
    "EvacuationStoppedError",
    "NotMoved",
    "SourcePlan",
    "evacuate",
    "evacuation_plan",
]
