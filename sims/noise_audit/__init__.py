"""Tests the noise in sums: its distribution if inputs are zero, and lower bounds on epsilon by an attack."""
