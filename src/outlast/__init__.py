"""Outlast: asynchronous RL post-training for language models whose rollouts outlast the process.

Importing this package loads nothing heavy: no torch, no transformers, no engine. The parts are
imported by name (`outlast.model`, `outlast.durable`, `outlast.runtime`, ...).
May import: the standard library only.
"""

from typing import Final

__version__: Final = "0.1.0"

__all__ = ["__version__"]
