"""The sub-commands of `loom`: options and help."""
