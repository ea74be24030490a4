"""Contract suites: one per port, run on every adapter and every fake of it."""
