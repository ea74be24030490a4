"""What the style rules look at: parsed modules, their functions, and findings about them.

May import: the standard library only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCE: Final = ROOT / "src" / "outlast"

FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One parsed source file; `name` is dotted, a package goes without `__init__`."""

    name: str
    text: str
    tree: ast.Module
    is_package: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function or method; `owner` is the class whose body holds it, if any."""

    name: str
    node: AnyFunction
    owner: ast.ClassDef | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One broken rule: which, where (`module::name`), in which line, and the observed value."""

    rule: str
    place: str
    line: int
    detail: str

    def __str__(self) -> str:
        """Message of a failing test."""
        return f"{self.place} (line {self.line}): {self.rule}: {self.detail}"


def parse(name: str, text: str, *, is_package: bool = False) -> Module:
    """Parse source text as the module `name`."""
    return Module(name=name, text=text, tree=ast.parse(text), is_package=is_package)


def load(source: Path = SOURCE) -> list[Module]:
    """Parse every Python file under the package directory `source`, in path order."""
    modules = []
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules.append(parse(name, path.read_text(encoding="utf-8"), is_package=is_package))
    return modules


def functions(module: Module) -> Iterator[Function]:
    """All functions of a module, nested ones and methods included, with qualified names."""

    def walk(node: ast.AST, prefix: str, owner: ast.ClassDef | None) -> Iterator[Function]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, FUNCTIONS):
                name = f"{prefix}{child.name}"
                yield Function(name=name, node=child, owner=owner)
                yield from walk(child, f"{name}.", None)
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, f"{prefix}{child.name}.", child)
            else:
                yield from walk(child, prefix, owner)

    return walk(module.tree, "", None)


def finding(rule: str, module: Module, *, name: str, line: int, detail: str) -> Finding:
    """A finding about the function or class `name` of a module (`*`: the whole file)."""
    return Finding(rule=rule, place=f"{module.name}::{name}", line=line, detail=detail)


def within(name: str, packages: tuple[str, ...]) -> bool:
    """Whether a dotted name is one of the packages or lies below one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)
