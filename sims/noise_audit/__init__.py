"""Tests the noise in a sum: its distribution if all inputs are zero, and lower bounds on epsilon."""
