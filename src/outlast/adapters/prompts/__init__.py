"""Prompt sources: map-style, pure, addressed by index (port `PromptSource`).

May import: `ports`, `config`, `errors`, `assets`; pyarrow and reasoning-gym inside functions only.
"""

from outlast.adapters.prompts.build import build_prompts

__all__ = ["build_prompts"]
