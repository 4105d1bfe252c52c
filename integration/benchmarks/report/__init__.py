"""The report of `make bench`: results as JSON, charts, and one HTML page."""
