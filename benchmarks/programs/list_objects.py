"""13.5 million small objects: lists of records, built and dropped."""


def record(number: int) -> dict[str, object]:
    return {"id": number, "name": f"user{number}", "tags": [number, number + 1]}


def main(records: int = 300_000, rounds: int = 5) -> None:
    table: list[dict[str, object]] = []
    for _ in range(rounds):
        table = [record(number) for number in range(records)]
    print(len(table))


main()
