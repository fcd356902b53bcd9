"""Distributed discrete Gaussian noise: every client adds a little, and only the total is noisy enough."""
