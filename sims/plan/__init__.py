"""What a run will cost and reveal, computed before it starts."""
