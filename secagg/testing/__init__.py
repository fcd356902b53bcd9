"""Public tools to test programs that use secure sums: seeded machines, and a simulated faulty network."""
