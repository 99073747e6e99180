"""The client's side of protocol `ordered`: replicas of streams are asked directly.

loglet.py         implements the contract
carrier.py        sends batches of appends       resolver.py   finds out whether one was stored
fixed_append.py   appends of several processes   finder.py     looks up positions and times
part.py           merges streams into one run    feed.py       follows one stream
"""
