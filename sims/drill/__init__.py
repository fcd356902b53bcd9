"""Runs drills: sessions over TLS in which client processes are killed at random, to test drop-outs."""
