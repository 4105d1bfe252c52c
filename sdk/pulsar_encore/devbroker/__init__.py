"""A Pulsar broker for laptops and tests, in memory. Stock clients connect to it over TCP."""

from .broker_settings import BrokerSettings, TlsSettings
from .recorder import Recorded
from .rules.credentials import Credential
from .rules.faults import Fault, FaultPlan, Fired
from .rules.refusal import Refusal
from .server import Broker
from .thread import BrokerThread, run_in_thread

__all__ = [
    "Broker",
    "BrokerSettings",
    "BrokerThread",
    "Credential",
    "Fault",
    "FaultPlan",
    "Fired",
    "Recorded",
    "Refusal",
    "TlsSettings",
    "run_in_thread",
]
