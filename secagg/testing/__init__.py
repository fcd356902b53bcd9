"""Public tools for testing what is built on secure sums: seeded machines, and a wire that loses frames."""
