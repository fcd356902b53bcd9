"""Deployments on engines: Flower and NVFlare carry the connections of clients to their server.

Each engine is an optional extra of this distribution, and nothing else imports it. An engine is one end of a
`secagg.net.tunnel`: a `Carrier` for the server, and a `NodeEngine` for a client. Server and clients are those
of `sims.deploy`.
"""
