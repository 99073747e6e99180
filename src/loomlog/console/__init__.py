"""The HTTP API and the web console: a process of its own, `loom console`, that uses the ordinary
client.

It keeps nothing that matters: any number of them may run, and be stopped at any time. Requests are
made with the caller's own token, so that the servers decide what is permitted. Needs the packages
of `loomlog[console]`.
"""
