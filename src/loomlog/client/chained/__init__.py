"""The client's side of protocol `chained`: what core/chained decides, carried out over connections.

chains.py      drives its operations, and finds the newest projection after an interruption
spinning.py    awake while one append alone is under way
writing.py     one block to its place, whatever happens on the way
carrying.py    batches of appends            reserving.py   appends whose place is decided first
finding.py     one entry by its position     following.py   a subscription
tails.py       how far it reaches
"""
