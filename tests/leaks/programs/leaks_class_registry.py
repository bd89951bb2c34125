"""Classes made at run time register themselves in their base class."""

from typing import ClassVar

from noise import VALUES, text, work


class Base:
    registry: ClassVar[dict[str, type]] = {}

    def __init_subclass__(cls) -> None:
        Base.registry[f"{cls.__name__}{len(Base.registry)}"] = cls


def call() -> None:
    work()
    for _ in range(VALUES):
        type("Made", (Base,), {"description": text()})  # leak
