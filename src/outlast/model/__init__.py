"""Values and transitions of the recovery model: no asyncio, no I/O, no clock, no torch."""
