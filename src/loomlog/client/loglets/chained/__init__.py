"""The client's side of protocol `chained`: carries out the decisions of core/chained.

loglet.py         implements the contract
chains.py         drives operations, and finds the newest projection after an interruption
requests.py       requests to replicas and sequencers
carrier.py        batches of appends             fixed_append.py   appends at a reserved place
finder.py         one entry by its position, and where the log ends
part.py           follows a segment
"""
