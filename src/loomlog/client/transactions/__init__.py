"""Transactions: appends to several logs that become visible together (core/transactions.py).

The log of decisions is an ordinary log whose protocol can decide on reserved positions.
"""
