"""Pipelines: logs in, a table or a log out, each input exactly once.

A pipeline's progress is one register in the metadata repository. `units.py`, which is pure, defines
its transitions; the other modules carry them out with Spark.
"""
