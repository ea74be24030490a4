"""Tests of the adapters behind the ports."""
