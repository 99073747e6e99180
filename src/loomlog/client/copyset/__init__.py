"""The client's side of protocol `copyset`: what core/copyset decides, carried out over connections.

segments.py     what is known of the segments of a log, and their nodes
sequencers.py   who sequences a segment      tails.py       how far it reaches
carrying.py     batches of appends
reading.py      drives a reader              following.py   a subscription
finding.py      one entry by its position    guessing.py    asks single nodes for it first
epochs.py       where a range can be cut
"""
