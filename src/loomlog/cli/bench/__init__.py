"""`loom bench`: measures a cluster on this machine from a client's point of view.

Every figure is of acknowledged or received records, measured in this process with the public
client and no special settings. Nothing here asserts a speed.
"""
