"""Attackers to run against a client machine: each is what a cheating server, or one with colluders, would do.

An attacker takes a `Rig` of honest machines and returns what it learned; a machine's refusal comes through
as the error it raised. Against a machine whose guard was removed, it learns a client's private vector.
"""
