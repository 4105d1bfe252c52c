"""Move the waiting messages of a state directory to the broker, to shut down a host.

`evacuate` copies each waiting message to the retry letter topic of its subscription, which delivers
the copy when it is due. `evacuation_plan` returns the targets beforehand. `pulsar-encore state
evacuate` is a thin layer over both.
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
