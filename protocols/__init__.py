"""Federated algorithms, each written as a sequence of sums.

An algorithm here (an average, a histogram, a round of federated averaging) says which vectors the
clients contribute to which sums, and what is computed from the totals. The sums themselves are
those of ``secagg``, so the totals are all that a server learns from a run of the algorithm.
"""

__distribution__ = "secagg"
