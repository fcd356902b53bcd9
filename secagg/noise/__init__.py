"""Distributed discrete Gaussian noise: each client adds some, so that the total has the planned variance."""
