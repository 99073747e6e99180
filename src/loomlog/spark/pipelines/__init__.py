"""Pipelines: logs in, a table or a log out, each input exactly once.

A pipeline's progress is one register in the metadata repository. `units.py` says what may happen to
it and is pure; the rest carries that out with Spark.
"""
