"""The demo: one session as the server sees it, and a training run under attack."""
