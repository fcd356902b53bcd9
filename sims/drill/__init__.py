"""A drill: a session among real processes over TLS, in which some are killed at random points."""
