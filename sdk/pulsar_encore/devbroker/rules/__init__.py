"""What the development broker decides: no event loop, no clock, no sockets, no logging.

Ids and times come in, deliveries, notices and refusals go out. The transport in memory of
`pulsar_encore.testing` obeys the same rules.
"""
