"""The style rules about one file: size, signatures, documentation, exception handlers.

May import: the standard library and `tests.tidy.source`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from tests.tidy.source import FUNCTIONS, Finding, Function, Module, finding, functions, within

FILE_LINES_MAX: Final = 400
FUNCTION_LINES_MAX: Final = 70  # without the docstring: documentation is not length
NESTING_MAX: Final = 4
POSITIONAL_MAX: Final = 2
ANY_FREE: Final = ("outlast.model", "outlast.durable")

_BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
_BOUNDARY = re.compile(r"#\s*boundary:\s*\S+")
_BROAD = frozenset({"Exception", "BaseException"})


def file_lines(module: Module) -> int:
    """Lines of the file, blank ones and comments included."""
    return len(module.text.splitlines())


def function_lines(function: Function) -> int:
    """Lines from `def` to the end, without decorators and without the docstring."""
    node = function.node
    assert node.end_lineno is not None
    total = node.end_lineno - node.lineno + 1
    if ast.get_docstring(node, clean=False) is not None:
        doc = node.body[0]
        assert doc.end_lineno is not None
        total -= doc.end_lineno - doc.lineno + 1
    return total


def nesting(function: Function) -> int:
    """Deepest block inside the function; `elif` adds none; a nested function starts again at 0."""

    def depth(statement: ast.AST, above: int) -> int:
        if isinstance(statement, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            return above
        here = above + 1 if isinstance(statement, _BLOCKS) else above
        deepest = here
        for child in ast.iter_child_nodes(statement):
            level = above if _is_elif(statement, child) else here
            deepest = max(deepest, depth(child, level))
        return deepest

    return max(depth(statement, 0) for statement in function.node.body)


def _is_elif(parent: ast.AST, child: ast.AST) -> bool:
    if not isinstance(parent, ast.If) or not isinstance(child, ast.If):
        return False
    # `else:` with an indented `if` has a larger column; a true `elif` shares its parent's column.
    return parent.orelse == [child] and child.col_offset == parent.col_offset


def check_size(module: Module) -> Iterator[Finding]:
    """Files, functions and nesting within their limits."""
    lines = file_lines(module)
    if lines > FILE_LINES_MAX:
        detail = f"{lines} lines, at most {FILE_LINES_MAX}"
        yield finding("file-length", module, name="*", line=lines, detail=detail)
    for function in functions(module):
        name, line = function.name, function.node.lineno
        length = function_lines(function)
        if length > FUNCTION_LINES_MAX:
            detail = f"{length} lines, at most {FUNCTION_LINES_MAX}"
            yield finding("function-length", module, name=name, line=line, detail=detail)
        level = nesting(function)
        if level > NESTING_MAX:
            detail = f"{level} levels, at most {NESTING_MAX}"
            yield finding("nesting", module, name=name, line=line, detail=detail)


# --- signatures -----------------------------------------------------------------------------------


def positional(function: Function) -> int:
    """Parameters that may be passed by position, without `self` or `cls`."""
    arguments = function.node.args
    count = len(arguments.posonlyargs) + len(arguments.args)
    is_static = any(_name_of(d) == "staticmethod" for d in function.node.decorator_list)
    return count - 1 if function.owner is not None and not is_static and count else count


def _name_of(node: ast.expr) -> str:
    """Last part of a dotted name or of the function in a call; empty for anything else."""
    if isinstance(node, ast.Call):
        return _name_of(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _signature_is_given(function: Function) -> bool:
    """Dunder methods (but the two we choose ourselves) and declared overrides follow a protocol."""
    name = function.node.name
    is_dunder = name.startswith("__") and name.endswith("__")
    is_override = any(_name_of(d) == "override" for d in function.node.decorator_list)
    return is_override or (is_dunder and name not in {"__init__", "__call__"})


def check_positional(module: Module) -> Iterator[Finding]:
    """More than two parameters: the rest keyword-only."""
    for function in functions(module):
        count = positional(function)
        if count > POSITIONAL_MAX and not _signature_is_given(function):
            detail = f"{count} positional parameters, at most {POSITIONAL_MAX}; the rest after `*`"
            line = function.node.lineno
            yield finding("positional", module, name=function.name, line=line, detail=detail)


def _names_any(annotation: ast.expr, aliases: frozenset[str]) -> bool:
    """Whether the annotation mentions `Any`, under an alias or inside a quoted annotation too."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name) and node.id in aliases:
            return True
        if isinstance(node, ast.Attribute) and node.attr == "Any":
            return True
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = set(re.findall(r"\w+", node.value))
            if words & (aliases | {"Any"}):
                return True
    return False


def _annotations(module: Module) -> Iterator[tuple[str, ast.expr]]:
    """Parameters, returns, and fields of classes (they are the signature of `__init__`)."""
    for function in functions(module):
        spec = function.node.args
        optional = [a for a in (spec.vararg, spec.kwarg) if a is not None]
        for argument in [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, *optional]:
            if argument.annotation is not None:
                yield function.name, argument.annotation
        if function.node.returns is not None:
            yield function.name, function.node.returns
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign):
                    yield node.name, statement.annotation


def check_any(module: Module) -> Iterator[Finding]:
    """No `Any` in signatures of the packages whose types carry the proof."""
    if not within(module.name, ANY_FREE):
        return
    aliases = {"Any"}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module in {"typing", "typing_extensions"}:
            aliases |= {a.asname for a in node.names if a.name == "Any" and a.asname}
    for name, annotation in _annotations(module):
        if _names_any(annotation, frozenset(aliases)):
            detail = "`Any` in a signature; name the type, or `object` and narrow it"
            yield finding("any", module, name=name, line=annotation.lineno, detail=detail)


# --- documentation and handlers -------------------------------------------------------------------


def check_docstring(module: Module) -> Iterator[Finding]:
    """Every module opens with what it is."""
    if not (ast.get_docstring(module.tree) or "").strip():
        yield finding("docstring", module, name="*", line=1, detail="the module has no docstring")


def _caught(handler: ast.ExceptHandler) -> set[str]:
    if handler.type is None:
        return {"BaseException"}
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {_name_of(t) for t in types}


def _reraises(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(node, ast.Raise) for s in handler.body for node in ast.walk(s))


def _cleans_up(node: ast.ExceptHandler | ast.Call) -> bool:
    """A handler that ends in a bare `raise` handles nothing: it only tidies up on the way."""
    if not isinstance(node, ast.ExceptHandler):
        return False
    last = node.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def check_handlers(module: Module) -> Iterator[Finding]:
    """Broad handlers only at named boundaries; cancellation is never swallowed."""
    lines = module.text.splitlines()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler):
            names, swallows = _caught(node), not _reraises(node)
        elif isinstance(node, ast.Call) and _name_of(node.func) == "suppress":
            names, swallows = {_name_of(a) for a in node.args}, True
        else:
            continue
        if _BOUNDARY.search(lines[node.lineno - 1]):
            continue
        if names & _BROAD and not _cleans_up(node):
            detail = f"catches {', '.join(sorted(names & _BROAD))} without `# boundary: <name>`"
            yield finding("broad-except", module, name="*", line=node.lineno, detail=detail)
        elif "CancelledError" in names and swallows:
            detail = "swallows cancellation without `# boundary: <name>`"
            yield finding("cancellation", module, name="*", line=node.lineno, detail=detail)
