"""Benchmarks: what secure sums cost, measured on this machine.

A benchmark is a module here with a function that measures and returns a report, and an entry of
`benchmarks.registry`. Reports are plain data, which modules called views draw in a terminal. `survey` runs
the measurements of the page of benchmarks, and `page` writes it.
"""
