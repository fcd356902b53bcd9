"""Runs deployed training inside other federated learning engines, which carry its connections."""
