"""`python -m tests.tidy`: the size figures, then whatever breaks a rule."""

from __future__ import annotations

from tests.tidy import ALLOWED, findings, load, report, unexcused


def main() -> None:
    """Print the figures, then the findings that nothing excuses."""
    modules = load()
    print(report(modules))
    left, stale = unexcused(findings(modules), ALLOWED)
    for line in [*map(str, left), *(f"stale entry of ALLOWED: {entry}" for entry in stale)]:
        print(line)


if __name__ == "__main__":
    main()
