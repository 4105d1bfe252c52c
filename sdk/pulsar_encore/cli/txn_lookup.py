"""Ask the web service for open transactions."""

from __future__ import annotations

import asyncio
from typing import Final

from ..admin import CoordinatorStats, TransactionMetadata, WebService
from ..errors import EncoreError, LookupError, TransactionNotFound
from ..values.transaction_id import TxnId
from .txn_list import CoordinatorList, OpenList, open_list
from .txn_verdict import TxnFacts

#: Ids that are asked for one by one, at most, and at the same time.
_MOST_IDS: Final = 200
_AT_ONCE: Final = 10


async def list_open(web: WebService) -> OpenList:
    """Return the open transactions of all coordinators."""
    numbers = await web.coordinators()
    answers = await asyncio.gather(
        *(_of_coordinator(web, number) for number in numbers), return_exceptions=True
    )
    return open_list(dict(zip(numbers, answers, strict=True)))


async def _of_coordinator(web: WebService, number: int) -> CoordinatorList:
    try:
        return CoordinatorList(await web.open_transactions(number))
    except LookupError:  # status 500
        # If a topic of one transaction is deleted or not loaded, the broker lists none.
        return await _one_by_one(web, number, await web.coordinator_stats(number))


async def _one_by_one(web: WebService, number: int, stats: CoordinatorStats) -> CoordinatorList:
    counters = range(stats.ended + 1, stats.last + 1)
    limit = asyncio.Semaphore(_AT_ONCE)

    async def ask(counter: int) -> TransactionMetadata | str | None:
        txn_id = TxnId(number, counter)
        async with limit:
            try:
                return await web.transaction(txn_id)
            except TransactionNotFound:
                return None  # it has ended
            except LookupError as error:
                return f"{txn_id} is open, and its broker cannot describe it: {error}"

    answers = await asyncio.gather(*map(ask, counters[:_MOST_IDS]))
    found = tuple(each for each in answers if isinstance(each, TransactionMetadata))
    notes = [each for each in answers if isinstance(each, str)]
    if len(counters) > _MOST_IDS:
        notes.append(
            f"transactions of coordinator {number} after {TxnId(number, counters[_MOST_IDS - 1])}"
        )
    return CoordinatorList(found, tuple(notes))


async def find_facts(web: WebService, txn_id: TxnId) -> TxnFacts:
    """Ask everything about one transaction that `explain` needs."""
    try:
        found = await web.transaction(txn_id)
    except TransactionNotFound:
        return await _facts_of_missing(web, txn_id)
    except LookupError as error:
        return TxnFacts(id=txn_id, undescribed=f"{error}")
    try:
        listed = await list_open(web)
    except EncoreError as error:
        return TxnFacts(id=txn_id, found=found, not_seen=(f"other transactions: {error}",))
    return TxnFacts(
        id=txn_id,
        found=found,
        others=tuple(each for each in listed.found if each.id != txn_id),
        not_seen=(*listed.not_loaded, *listed.failed),
    )


async def _facts_of_missing(web: WebService, txn_id: TxnId) -> TxnFacts:
    numbers = await web.coordinators()
    if txn_id.most not in numbers:
        return TxnFacts(id=txn_id, coordinators=numbers)
    try:
        stats = await web.coordinator_stats(txn_id.most)
    except EncoreError as error:
        return TxnFacts(id=txn_id, coordinators=numbers, not_seen=(f"{error}",))
    return TxnFacts(id=txn_id, coordinators=numbers, coordinator=stats)
