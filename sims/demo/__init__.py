"""The two parts of `secagg demo`: one session of secure sums, and a training run under attack."""
