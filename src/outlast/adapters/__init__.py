"""Adapters: one module per outside thing; each passes the contract suite of its port.

May import: `algorithms`, `durable`, `ports`, `rows`, `model`, and the outside thing itself.
"""
