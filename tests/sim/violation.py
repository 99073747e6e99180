"""The error that judges and worlds raise."""

from __future__ import annotations


class Violation(AssertionError):  # noqa: N818 - it says what it is
    """A run broke one of the rules that the protocol must keep."""
