"""Distributed discrete Gaussian noise: each client adds a part, and the total has the planned variance."""
