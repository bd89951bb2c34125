"""A service whose log of requests only grows."""

import json

history = []


def handle(number):
    request = json.dumps({"id": number, "body": "x" * 400})
    history.append(json.loads(request))  # HERE
    return len(request)


def main():
    for number in range(20_000):
        handle(number)


main()
