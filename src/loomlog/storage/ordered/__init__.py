"""Stores of the `ordered` protocol: a data log and a commit log per replica."""
