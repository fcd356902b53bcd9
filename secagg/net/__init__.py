"""The secure sum over a network: identities in files, TLS, and the transport that carries the frames.

This is the one place of the package that imports trio. The machines that it drives know nothing of it.
"""
