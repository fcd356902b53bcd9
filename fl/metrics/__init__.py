"""Metrics that an observer of a simulation computes from the results of single clients.

In a deployment these are not available: the server sees only sums.
"""
