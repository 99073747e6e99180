"""Tools for metadata while no metadata repository runs: move, rebuild, check."""
