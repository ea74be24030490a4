"""Harness (a): crash-point enumeration of everything that touches the disk."""
