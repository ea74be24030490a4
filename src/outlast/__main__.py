"""The program `outlast`: the commands of `cli`, and those that need the harnesses of `testing`.

Above every layer, so that no layer has to look up: `cli` does not know that `testing` exists.
`python -m outlast` is the same as the script. May import: `cli`, `testing`.
"""

from __future__ import annotations

from outlast.cli.exits import guarded
from outlast.cli.main import app
from outlast.testing.commands import crashtest, simulate

for _command in (crashtest, simulate):
    app.command()(guarded(_command))

if __name__ == "__main__":
    app()
