"""The demonstration: the stock client and this SDK on the same workloads, measured in one run."""
