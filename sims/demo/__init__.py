"""The demo: one session told from the server's side, with what only an onlooker could know beside it."""
