"""Trainers: adapters of the port `Trainer`."""
