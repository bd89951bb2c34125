"""Recursive code over instances: binary trees, built and walked; many distinct stacks."""


class Node:
    __slots__ = ("left", "right")

    def __init__(self, left: "Node | None", right: "Node | None") -> None:
        self.left = left
        self.right = right

    def count(self) -> int:
        return 1 + sum(child.count() for child in (self.left, self.right) if child is not None)


def build(depth: int) -> Node | None:
    return Node(build(depth - 1), build(depth - 1)) if depth else None


total = 0
for _ in range(200):
    tree = build(13)
    assert tree is not None
    total += tree.count()
print(total)
