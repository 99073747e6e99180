"""The client's side of protocol `copyset`: carries out the decisions of core/copyset.

loglet.py          implements the contract
known_segments.py  cached state of segments and their nodes
sequencers.py      finds and asks the sequencer   tail.py            where the log ends
carrier.py         batches of appends             fixed_append.py    appends in one epoch
reader_driver.py   drives a reader                part.py            follows a segment
finder.py          one entry by its position      likely_holders.py  asks single nodes for it first
"""
