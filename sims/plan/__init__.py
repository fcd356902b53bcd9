"""Computes, before a run starts, what it will cost and what the server will learn from it."""
