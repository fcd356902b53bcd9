"""Tests the noise in sums: its distribution if all inputs are zero, and lower bounds on epsilon."""
