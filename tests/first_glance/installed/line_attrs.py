import attr


@attr.define
class Reading:
    at = attr.field()
    values = attr.field(converter=list, factory=list)


def load(count):
    return [Reading(number, range(20)) for number in range(count)]  # HERE


def main():
    print(len(load(60_000)))


if __name__ == "__main__":
    main()
