"""Says in words how objects are held: "list in dict `_MEMO` of module `app.views`"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hiwater.capture.holders import StepKind

_ROOT_NOUNS = {
    StepKind.thread: "values that a thread keeps for itself",
    StepKind.exception: "an exception that is being handled",
    StepKind.c_code: "C code",
    StepKind.garbage: "objects that only each other hold",
    StepKind.interpreter: "the interpreter",
}
_MOST_PARTS = 7
"""Of a holder's description; of a longer one some in the middle are left out: the language's containers first,
because a person finds and changes what has a name."""


class _Part(NamedTuple):
    text: str
    tells: int  # 2: a name, 1: a type of the program's or of a library, 0: a container of the language's


class Words:
    """The words for the paths of one search. All arguments are by path number; 0 is none."""

    def __init__(
        self,
        parent: Sequence[int],
        kind: Sequence[int],
        label: Sequence[str],
        type_of: Sequence[str],
        objects: Sequence[int],
    ) -> None:
        self._parent, self._kind, self._label, self._type, self._objects = parent, kind, label, type_of, objects

    def type_name(self, path: int) -> str:
        """The type of a path's objects. That of the program's own module goes without the module."""
        return self._type[path].removeprefix("__main__.")

    def holder(self, path: int) -> str:
        """What holds the objects of a path."""
        if self._is_root(path):
            return self._root_noun(path)
        name = self._reference(path)
        parts = self._parts(self._owner(path))
        return _joined([_Part(name, 2), *parts] if name else parts)

    def noun(self, path: int) -> str:
        """The objects of a path themselves, with what holds them."""
        return _joined(self._parts(path))

    def steps(self, path: int) -> tuple[str, ...]:
        """Each step from the root to the objects of a path."""
        found = []
        while path:
            if self._is_root(path):
                found.append(self._root_noun(path))
            elif self._kind[path] != StepKind.namespace:
                name = self._reference(path).removesuffix(" of")
                found.append(f"{self._counted(path)} {name}".rstrip())
            path = self._parent[path]
        return tuple(found[::-1])

    def _is_root(self, path: int) -> bool:
        return not self._type[path]

    def _owner(self, path: int) -> int:
        """The path that refers to this one; of a variable in an object's namespace, the object."""
        owner = self._parent[path]
        return self._parent[owner] if self._kind[owner] == StepKind.namespace and self._parent[owner] else owner

    def _parts(self, path: int) -> list[_Part]:
        """The objects of a path, then each holder up to the root. A part that ends with "of" says what the next one
        is."""
        parts = []
        while path:
            if self._is_root(path):
                parts.append(_Part(self._root_noun(path), 2))
                break
            name = self._reference(path)
            parts.append(_Part(f"{self._counted(path)} {name or 'in'}", 2 if name else int("." in self._type[path])))
            path = self._owner(path)
        return parts

    def _reference(self, path: int) -> str:
        """By which name the owner refers to the objects: "`_MEMO` of"; "" for an element of a container."""
        kind, label = self._kind[path], self._label[path]
        if kind == StepKind.namespace:
            return "(attributes) of"
        if kind not in (StepKind.variable, StepKind.local, StepKind.member) or not label:
            return ""
        is_attribute = kind != StepKind.local and not self._is_root(self._parent[path])
        return f"`{'.' if is_attribute else ''}{label}` of"

    def _counted(self, path: int) -> str:
        name, count = self.type_name(path), self._objects[path]
        return f"{count:,} × {name}" if count > 1 else name

    def _root_noun(self, path: int) -> str:
        kind, label = self._kind[path], self._label[path]
        if kind == StepKind.module:
            return f"module `{label}`"
        if kind == StepKind.frame:
            return f"function {label}"
        return _ROOT_NOUNS.get(StepKind(kind), "the interpreter")


def _joined(parts: Sequence[_Part]) -> str:
    middle = range(2, len(parts) - 2)
    least_telling = sorted(middle, key=lambda place: (parts[place].tells, place))
    left_out = set(least_telling[: max(0, len(parts) - _MOST_PARTS)])
    return " ".join(
        "… in" if place in left_out else part.text
        for place, part in enumerate(parts)
        if not {place, place - 1} <= left_out  # a gap is shown once
    )
