"""An open transaction, as the web service describes it."""

from __future__ import annotations

from pulsar_encore.admin import AckedSubscription, ProducedTopic, TransactionMetadata
from pulsar_encore.values.transaction_id import TxnId

NOW_MS = 1_769_862_352_000  # 2026-01-31T12:25:52Z
OUT = "persistent://public/default/out"
IN = "persistent://public/default/in"
ID = TxnId(0, 48)
OPEN = TransactionMetadata(
    id=ID,
    status="OPEN",
    begun_ms=NOW_MS - 72_000,
    timeout_ms=120_000,
    owner=None,
    topics=(ProducedTopic(OUT, (12, 3)),),
    subscriptions=(AckedSubscription(IN, "billing", None),),
)
