"""Computes what a run will cost and reveal before it starts."""
