"""Audits the directory of a run: whether its records are unaltered, and how private the run was."""
