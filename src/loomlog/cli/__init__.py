"""The command line: `loom` for users and scripts, `vsn` and `vmr` for the two kinds of server.

Nothing imports this package. Modules here import what they need inside functions where that
keeps a command quick to start or a server small: `loom --help` loads no Arrow, a server process
loads neither Arrow nor rich nor the client.
"""
