"""Training as a server and its clients run it, in a deployment as in a simulation: each part exists once.

`Coordinator`    the server's side: it runs rounds over a `Transport`, and sees frames and totals.
`Transport`      carries frames between the coordinator and the clients.
`ClientRuntime`  one client's side: it answers queries and keeps its state.
`RunWriter`      writes the run directory, and `Spending` adds up the privacy cost that it shows.

Nothing here imports the simulation. Simulated clients, drop-outs, attackers and observers are in
`sims.runtime` and `sims.simulation`, which attach them from outside.
"""
