"""Environments: a prompt in, one rewarded rollout out (port `Environment`).

May import: `ports`, `config`, `errors`, `assets`; reasoning-gym inside functions only.
"""

from outlast.adapters.environments.single_turn import SingleTurnEnvironment, build_environment

__all__ = ["SingleTurnEnvironment", "build_environment"]
