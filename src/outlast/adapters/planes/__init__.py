"""Data planes: where rows live while the run goes on. One file per implementation."""
