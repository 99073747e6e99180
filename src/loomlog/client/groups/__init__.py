"""Consumer groups: programs that share the entries of a log."""
