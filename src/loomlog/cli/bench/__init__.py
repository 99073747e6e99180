"""`loom bench`: what a cluster does on this machine, as a client meets it.

Every figure is of acknowledged or received records, measured in this process with the public
client and no special settings. Nothing here asserts a speed.
"""
