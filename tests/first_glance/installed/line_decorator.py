import decorator


@decorator.decorator
def logged(function, *arguments, **named):
    return function(*arguments, **named)


@logged
def build(count):
    return [bytes(100) for _ in range(count)]  # HERE


def main():
    print(len(build(200_000)))


if __name__ == "__main__":
    main()
