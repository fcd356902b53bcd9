"""Public tools for testing what is built on secure sums: seeded machines, a hostile wire, attackers."""
