"""Tests of the pure model, against naive models of the same rules."""
