"""The `chained` protocol in the metadata repository: projections, which are swapped by epoch, the
sequencers of this term, and the loop that repairs chains."""
