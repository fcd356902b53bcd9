"""Audits the directory of a simulated run: whether its records are unaltered, and how private it was."""
