"""A drill: a session with client processes over TLS, some of which are killed at random points."""
