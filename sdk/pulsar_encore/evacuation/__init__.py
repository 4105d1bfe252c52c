"""Retiring a host: what waits in its state directory goes on waiting at the broker.

`evacuate` copies each message that waits to the retry-letter topic of its subscription, to be
delivered when it is due there; `evacuation_plan` says beforehand what would go where.
`pulsar-encore state evacuate` is a thin layer over it.
"""

from .evacuation_plan import TopicPlan, evacuation_plan
from .evacuation_report import EvacuationReport, EvacuationStoppedError, NotMoved
from .evacuation_run import evacuate

__all__ = [
    "EvacuationReport",
    "EvacuationStoppedError",
    "NotMoved",
    "TopicPlan",
    "evacuate",
    "evacuation_plan",
]
