"""Distributed discrete Gaussian noise: each client adds some, and the total has the planned variance."""
