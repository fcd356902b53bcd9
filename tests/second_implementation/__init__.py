"""The sum protocol a second time, written from docs/protocol.md alone, whose sections the comments name.

It shares no code with the package. It builds every frame of honest parties, and the totals, but makes only
those checks of a receiver that decide which frame comes next.
"""
