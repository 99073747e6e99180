"""Segments of the `chained` protocol in the metadata repository: their projections, which are
swapped by epoch, the sequencers of this term, and the loop that keeps chains as they should be."""
