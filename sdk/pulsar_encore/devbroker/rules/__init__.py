"""Rules of the development broker, without event loop, clock, sockets and logging.

Ids and times are arguments; deliveries, notices and refusals are results. The transport in memory
of `pulsar_encore.testing` obeys the same rules.
"""
