"""The client's side of protocol `copyset`: carries out the decisions of core/copyset.

loglet.py         implements the contract
segments.py       cached state of segments, their nodes and sequencers
carrier.py        batches of appends             fixed_append.py   appends in one epoch
acknowledged.py   reports what all disks forgot
reader_driver.py  drives a reader                part.py           follows a segment
finder.py         one entry by its position, and where the log ends
"""
