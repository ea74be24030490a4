"""Advantages and losses: pure functions on tensors, each citing the formula it implements.

May import: torch, `model`.
"""
