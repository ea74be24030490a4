"""Models and tasks of the two shipped recipes.

What it is: the tiny warm-started checkpoint (`tiny/`) beside the script that makes it, its task,
and the conversion of SmolLM2-135M-Instruct out of an installed package. Importing this package
loads no torch. May import: `outlast.errors`; heavy libraries inside functions only.
"""
