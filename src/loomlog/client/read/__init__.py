"""Single reads and searches by time."""
