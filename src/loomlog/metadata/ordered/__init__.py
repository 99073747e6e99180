"""The `ordered` protocol in the metadata repository: commit rounds, seals and repair."""
