"""What an observer of a simulation computes from the results of single clients.

Nobody in a deployment could: there, a server sees sums alone.
"""
