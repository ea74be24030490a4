"""The documentation says what the code does: printed parts are equal, links lead somewhere,
commands are described, and examples run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.__main__ import app
from outlast.config import parse_recipe, reference
from outlast.model import table
from outlast.runtime.guards import check_recipe

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
YAML = re.compile(r"^```yaml\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def test_the_transition_table_is_the_one_the_ledger_uses() -> None:
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    _, marker, rest = page.partition("<!-- table:begin")
    printed, end, _ = rest.partition("<!-- table:end -->")
    assert marker and end, "docs/architecture.md has lost its table markers"
    assert printed.partition("-->\n")[2] == f"{table.as_markdown()}\n"


def test_the_recipe_page_is_the_one_the_schema_prints() -> None:
    page = (DOCS / "recipe.md").read_text(encoding="utf-8")
    assert page == reference.as_markdown(), (
        "run: python -m outlast.config.reference > docs/recipe.md"
    )


def test_every_command_is_described() -> None:
    page = (DOCS / "commands.md").read_text(encoding="utf-8")
    names = [c.name or c.callback.__name__ for c in app.registered_commands if c.callback]
    assert names, "the command line has no commands"
    for name in names:
        assert f"    outlast {name} " in page, f"{name} is missing in the list of commands"
        assert re.search(rf"^## {name}( |$)", page, re.MULTILINE), f"{name} has no section"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    headings = {}
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{page.relative_to(ROOT)} links to {target}, which does not exist"
        if anchor:
            headings.setdefault(found, _anchors(found))
            assert anchor in headings[found], f"{page.relative_to(ROOT)}: no heading for {target}"


def _anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def _examples() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for number, code in enumerate(PYTHON.findall(page.read_text(encoding="utf-8")), 1):
            found.append((f"{page.relative_to(ROOT)}-{number}", code))
    return found


def test_the_readme_has_an_example_to_run() -> None:
    assert any(name.startswith("README.md") for name, _ in _examples())


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in _examples()])
def test_python_examples_run(code: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_recipe_of_the_readme_is_accepted() -> None:
    recipes = YAML.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert recipes, "README.md has no recipe"
    for text in recipes:
        loaded = parse_recipe(text, source="README.md")
        assert check_recipe(loaded.recipe) == ()
