"""A Flower app for training by secure sums."""
