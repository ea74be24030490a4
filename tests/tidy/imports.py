"""The style rules about imports: what a package must never name, and no cycles at all.

Imports inside functions and under `TYPE_CHECKING` count: a cycle hidden there is a cycle.
May import: the standard library and `tests.tidy.source`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Final

from tests.tidy.source import Finding, Module, finding, within

# Modules that a package must not name, not even inside a function. A prefix covers its submodules.
_IO = frozenset({"io", "os", "pathlib", "shutil", "socket", "subprocess", "tempfile"})
_CHANCE = frozenset({"random", "secrets", "time", "datetime", "uuid"})
_CONCURRENCY = frozenset({"asyncio", "threading", "multiprocessing", "concurrent"})
_HEAVY = frozenset({"torch", "transformers", "ray", "vllm"})
FORBIDDEN_IMPORTS: Final[Mapping[str, frozenset[str]]] = {
    "outlast.model": _IO | _CHANCE | _CONCURRENCY | _HEAVY,
    "outlast.runtime": (_CHANCE - {"datetime"}) | _HEAVY,
    "outlast.durable": (_CHANCE - {"datetime"}) | _HEAVY,
    "outlast.telemetry": _HEAVY - {"torch"},  # the TensorBoard sink may load torch lazily
}


def imports(module: Module) -> Iterator[tuple[str, int]]:
    """Every dotted name the module imports, deferred and type-only imports included, with its line.

    `from a import b` yields `a.b`; the reader decides whether `b` is a module.
    """
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base_of(module, node)
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


def _base_of(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    up = node.level - 1 if module.is_package else node.level
    parts = module.name.split(".")
    parent = parts[: len(parts) - up]
    return ".".join([*parent, node.module] if node.module else parent)


def check_forbidden_imports(module: Module) -> Iterator[Finding]:
    """Packages that must stay free of I/O, clocks, chance or heavy libraries name none of them."""
    for package, forbidden in FORBIDDEN_IMPORTS.items():
        if not within(module.name, (package,)):
            continue
        for name, line in imports(module):
            if name.split(".")[0] in forbidden:
                detail = f"`{package}` must not import `{name.split('.')[0]}`"
                yield finding("forbidden-import", module, name="*", line=line, detail=detail)


def import_graph(modules: list[Module]) -> dict[str, set[str]]:
    """Module -> modules of the set that it imports anywhere (`from pkg import sub`: sub)."""
    known = {module.name for module in modules}
    graph: dict[str, set[str]] = {name: set() for name in known}
    for module in modules:
        for name, _ in imports(module):
            target = name if name in known else name.rpartition(".")[0]
            if target in known and target != module.name:
                graph[module.name].add(target)
    return graph


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one module, each sorted (Tarjan, 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph[node]):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            at = stack.index(node)
            component = sorted(stack[at:])
            del stack[at:]
            if len(component) > 1:
                found.append(component)

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found
