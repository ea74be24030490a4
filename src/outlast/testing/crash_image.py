"""Trees that a crash can leave behind, as values, and the choices between them.

An inode remembers what is durable and what is pending; a crash keeps some of the pending part.

- **K** process kill: everything written stays.
- **O** ordered, like ext4 and xfs: each directory keeps a prefix of its pending operations; bytes
  of a file that were not synced are lost, torn or whole.
- **P** POSIX-weak: each directory keeps any subset of its pending operations.

May import: the standard library.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

ROOT = 0


@dataclass(frozen=True, slots=True)
class EntryOp:
    """One pending change of a directory: names that go and a name that leads to an inode."""

    removed: str | None
    added: str | None
    inode: int

    def apply(self, entries: dict[str, int]) -> None:
        """Carry the change out, tolerating that earlier ones were lost."""
        if self.removed is not None:
            entries.pop(self.removed, None)
        if self.added is not None:
            entries[self.added] = self.inode


@dataclass(slots=True)
class DirNode:
    """A directory: what programs see, what is durable, and the operations in between."""

    entries: dict[str, int] = field(default_factory=dict)
    durable: dict[str, int] = field(default_factory=dict)
    pending: list[EntryOp] = field(default_factory=list)

    def change(self, op: EntryOp) -> None:
        op.apply(self.entries)
        self.pending.append(op)

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.pending.clear()

    def surviving(self, kept: Sequence[EntryOp]) -> dict[str, int]:
        """Entries after a crash that kept these of the pending operations."""
        entries = dict(self.durable)
        for op in kept:
            op.apply(entries)
        return entries


@dataclass(slots=True)
class FileNode:
    """A file: what programs read and what is durable."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    dirty: bool = False
    poisoned: bool = False
    """An fsync failed: its pages count as clean, so no later fsync makes them durable."""

    def sync(self) -> None:
        if not self.poisoned:
            self.durable = bytes(self.content)
        self.dirty = self.poisoned

    def variants(self) -> tuple[bytes, ...]:
        """What a crash can leave: bytes lost, torn, whole."""
        if not self.dirty:
            return (self.durable,)
        lost, whole = self.durable, bytes(self.content)
        tail_at = len(lost) if whole.startswith(lost) else 0
        torn = whole[: tail_at + (len(whole) - tail_at) // 2]
        return tuple(dict.fromkeys((lost, torn, whole)))


Signature = tuple[tuple[str, bytes | None], ...]
"""(path, content) of every file, (path, None) of every directory, in order."""


@dataclass(frozen=True, slots=True)
class Image:
    """One tree at rest: directories and files by inode, everything durable."""

    dirs: Mapping[int, Mapping[str, int]]
    files: Mapping[int, bytes]

    def paths(self, top: int = ROOT, at: str = "") -> Iterator[tuple[str, int]]:
        """(path, inode) of every file and directory below `top`, in name order."""
        for name in sorted(self.dirs[top]):
            inode = self.dirs[top][name]
            yield f"{at}/{name}", inode
            if inode in self.dirs:
                yield from self.paths(inode, f"{at}/{name}")

    def live_signature(self) -> Signature:
        """Like `signature`, but of scratch trees only their names."""
        return tuple((path, self.files.get(inode)) for path, inode in self._live(ROOT, ""))

    def _live(self, top: int, at: str) -> Iterator[tuple[str, int]]:
        for name in sorted(self.dirs[top]):
            inode = self.dirs[top][name]
            yield f"{at}/{name}", inode
            if inode in self.dirs and not is_scratch(name):
                yield from self._live(inode, f"{at}/{name}")

    def signature(self) -> Signature:
        """Equal for trees that no program can tell apart."""
        return tuple((path, self.files.get(inode)) for path, inode in self.paths())


Dirs = Mapping[int, DirNode]
FileNodes = Mapping[int, FileNode]


def visible_image(dirs: Dirs, files: FileNodes) -> Image:
    """Model K: the tree as programs see it now."""
    chosen = {inode: node.entries for inode, node in dirs.items()}
    contents = {inode: bytes(node.content) for inode, node in files.items()}
    return _reachable(chosen, contents)


def _reachable(dirs: Mapping[int, Mapping[str, int]], files: Mapping[int, bytes]) -> Image:
    kept_dirs: dict[int, dict[str, int]] = {}
    kept_files: dict[int, bytes] = {}
    todo = [ROOT]
    while todo:
        inode = todo.pop()
        if inode in files:
            kept_files[inode] = files[inode]
        elif inode not in kept_dirs:
            kept_dirs[inode] = dict(dirs[inode])
            todo += dirs[inode].values()
    return Image(kept_dirs, kept_files)


# --------------------------------------------------------------------------- enumeration

Options = Callable[[DirNode], Sequence[Sequence[EntryOp]]]
Chosen = dict[int, dict[str, int]]


def ordered_images(dirs: Dirs, files: FileNodes, *, cap: int) -> Iterator[Image]:
    """Model O: a prefix per directory times the variants of every dirty file."""
    yield from _images(dirs, files, options=_prefixes, cap=cap)


def weak_images(dirs: Dirs, files: FileNodes, *, cap: int) -> Iterator[Image]:
    """Model P: any subset per directory; beyond `cap` the corners and a fixed sample."""
    yield from _images(dirs, files, options=lambda node: _subsets(node.pending, cap), cap=cap)


def _prefixes(node: DirNode) -> list[list[EntryOp]]:
    return [node.pending[:n] for n in range(len(node.pending) + 1)]


def _subsets(pending: Sequence[EntryOp], limit: int) -> list[tuple[EntryOp, ...]]:
    if 2 ** len(pending) <= limit:
        sizes = range(len(pending) + 1)
        return [kept for n in sizes for kept in itertools.combinations(pending, n)]
    chosen: list[tuple[EntryOp, ...]] = [(), tuple(pending)]
    chosen += [(op,) for op in pending]
    chosen += [tuple(o for o in pending if o is not op) for op in pending]
    rng = random.Random(len(pending))
    chosen += [tuple(op for op in pending if rng.random() < 0.5) for _ in range(limit // 2)]
    return chosen


def is_scratch(name: str) -> bool:
    """Names whose content no restore reads: a sweep deletes them whatever is inside.

    Below them only the extremes are enumerated (nothing pending survived, everything did).
    """
    scaffold = name.endswith((".forking", ".exporting"))
    return scaffold or name.startswith(("tmp_", "trash_")) or name == "segments"


def _images(dirs: Dirs, files: FileNodes, *, options: Options, cap: int) -> Iterator[Image]:
    for chosen in _trees(ROOT, dirs, options=options, cap=cap):
        yield from _with_contents(chosen, files)


def _trees(inode: int, dirs: Dirs, *, options: Options, cap: int) -> list[Chosen]:
    """Every way that the directory `inode` and what is below it may look after a crash."""
    node = dirs[inode]
    found: list[Chosen] = []
    for kept in options(node):
        entries = node.surviving(kept)
        below = [
            _trees(child, dirs, options=_extremes if is_scratch(name) else options, cap=cap)
            for name, child in entries.items()
            if child in dirs
        ]
        for parts in _product(below, cap):
            tree: Chosen = {inode: entries}
            for part in parts:
                tree.update(part)
            found.append(tree)
    return found


def _extremes(node: DirNode) -> list[list[EntryOp]]:
    return [[], node.pending] if node.pending else [[]]


def _product(lists: Sequence[Sequence[T]], cap: int) -> Iterator[tuple[T, ...]]:
    """All combinations; where there are more than `cap`, the corners and a fixed sample."""
    total = math.prod(len(options) for options in lists)
    if total <= cap:
        yield from itertools.product(*lists)
        return
    rng = random.Random(total)
    yield tuple(options[0] for options in lists)
    yield tuple(options[-1] for options in lists)
    for at, options in enumerate(lists):
        for option in options:  # one part at a time, the others all or nothing
            yield tuple(option if i == at else other[0] for i, other in enumerate(lists))
            yield tuple(option if i == at else other[-1] for i, other in enumerate(lists))
    for _ in range(cap):
        yield tuple(rng.choice(options) for options in lists)


_FULL_PRODUCT_FILES = 3


def _with_contents(chosen: Chosen, files: FileNodes) -> Iterator[Image]:
    live: set[int] = set()
    reached: set[int] = set()
    _reach(ROOT, chosen, live=live, reached=reached, scratch=False)
    base = {inode: files[inode].durable for inode in reached}
    dirty = [inode for inode in sorted(reached) if files[inode].dirty]
    variants = [
        files[inode].variants() if inode in live else _ends(files[inode].variants())
        for inode in dirty
    ]
    if len(dirty) <= _FULL_PRODUCT_FILES:
        combinations = list(itertools.product(*variants))
    else:
        combinations = [tuple(v[0] for v in variants), tuple(v[-1] for v in variants)]
        for at, own in enumerate(variants):
            combinations += [
                tuple(one if i == at else v[-1] for i, v in enumerate(variants)) for one in own
            ]
    for contents in combinations:
        yield Image(chosen, {**base, **dict(zip(dirty, contents, strict=True))})


def _ends(variants: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return tuple(dict.fromkeys((variants[0], variants[-1])))


def _reach(inode: int, chosen: Chosen, *, live: set[int], reached: set[int], scratch: bool) -> None:
    for name, child in chosen[inode].items():
        below = scratch or is_scratch(name)
        if child in chosen:
            _reach(child, chosen, live=live, reached=reached, scratch=below)
        else:
            reached.add(child)
            if not below:
                live.add(child)


def drawn_image(dirs: Dirs, files: FileNodes, *, rng: random.Random) -> Image:
    """One crash by chance: mostly ordered, sometimes POSIX-weak, sometimes only a process kill."""
    kind = rng.random()
    if kind < 0.25:
        return visible_image(dirs, files)
    chosen: dict[int, Mapping[str, int]] = {}
    for inode, node in dirs.items():
        kept = node.pending[: rng.randint(0, len(node.pending))]
        if kind > 0.8:
            kept = [op for op in node.pending if rng.random() < 0.5]
        chosen[inode] = node.surviving(kept)
    contents = {inode: rng.choice(node.variants()) for inode, node in files.items()}
    return _reachable(chosen, contents)


def rotten_images(image: Image) -> Iterator[tuple[str, Image]]:
    """Model R: one inode truncated or flipped, or one name missing; (what happened, tree)."""
    names: dict[int, list[str]] = {}
    for path, inode in image.paths():
        if inode in image.files:
            names.setdefault(inode, []).append(path)
    for inode, paths in names.items():  # a hard link rots under all its names at once
        data = image.files[inode]
        middle = len(data) // 2
        flips = [_flip(data, at) for at in _places(len(data))]
        damaged = [("flipped", bad) for bad in flips]
        damaged += [("truncated", data[:middle]), ("emptied", b"")] if data else []
        for what, bad in damaged:
            yield f"{' = '.join(paths)} {what}", Image(image.dirs, {**image.files, inode: bad})
        for path in paths:
            yield f"{path} missing", _without(image, path)


def _places(size: int) -> list[int]:
    """Bytes that rot: every tenth part, and more towards the end, where Arrow keeps its columns."""
    tail = (size - 1 - 37 * back for back in range(8))
    return sorted({at for at in (*(size * n // 10 for n in range(10)), *tail) if 0 <= at < size})


def _flip(data: bytes, at: int) -> bytes:
    """The lowest bit: it turns a digit into another one, which parses."""
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _without(image: Image, path: str) -> Image:
    *parents, name = path.strip("/").split("/")
    at = ROOT
    for part in parents:
        at = image.dirs[at][part]
    entries = {n: i for n, i in image.dirs[at].items() if n != name}
    return _reachable({**image.dirs, at: entries}, image.files)
