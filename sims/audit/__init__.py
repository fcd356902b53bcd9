"""Audits whether a run was as private as it claims."""
