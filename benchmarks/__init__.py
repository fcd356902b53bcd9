"""Benchmarks: what secure sums cost, measured on the machine they run on.

A benchmark is a module here with a function that measures and returns a report, and an entry of
`benchmarks.registry`. Reports are plain data, which modules called views draw in a terminal. `survey` runs
what the page of benchmarks tells of, and `page` writes it.
"""
