"""15 million objects made by a C extension."""

import json


def main() -> None:
    document = [{"a": n, "b": str(n), "c": [n] * 5, "d": {"x": n / 3}} for n in range(50_000)]
    for _ in range(6):
        text = json.dumps(document)
        again = json.loads(text)
    print(len(again))


main()
