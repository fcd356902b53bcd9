"""Metrics of a simulation that are computed from the results of single clients.

In a deployment these metrics are not available, because the server sees only sums.
"""
