"""Dictionaries that grow, are looked into and lose entries: a cache at work."""


def main() -> None:
    cache: dict[tuple[int, str], list[int]] = {}
    hits = 0
    for number in range(1_200_000):
        key = (number * 7919 % 60_013, "even" if number % 2 else "odd")
        found = cache.get(key)
        if found is None:
            cache[key] = [number]
        else:
            found.append(number)
            hits += 1
        if number % 5 == 0:
            cache.pop(key)
    print(hits, len(cache))


main()
