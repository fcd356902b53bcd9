"""Benchmarks: what secure sums cost, measured on the machine they run on.

A benchmark is a module here with a function that measures and returns a report, and a command in
`sims.cli.bench`. Reports are plain data; `sims.bench.view` draws them.
"""
