"""Statistical tests of the noise in a sum: its distribution over zeros, and lower bounds on epsilon."""
