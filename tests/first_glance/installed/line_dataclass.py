from collections import namedtuple
from dataclasses import dataclass, field

Point = namedtuple("Point", "x y")  # noqa: PYI024 - the generated __new__ is what is tried


@dataclass
class Line:
    points: list = field(default_factory=list)


def main():
    lines = [Line() for _ in range(200_000)]  # HERE
    points = [Point(number, number) for number in range(20_000)]
    print(len(lines), len(points))


if __name__ == "__main__":
    main()
