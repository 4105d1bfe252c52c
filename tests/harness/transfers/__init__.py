"""Random consume-transform-produce histories with transactions, in virtual time, and a checker.

Each input has one output. Consumers of one subscription take groups of inputs, send the outputs and
ack the inputs in one transaction, while connections, processes and the broker fail.
"""
