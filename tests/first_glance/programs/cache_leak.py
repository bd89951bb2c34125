"""A cache without a bound: every answer is kept."""

import hashlib

_answers = {}


def answer(question):
    if question not in _answers:
        text = hashlib.sha256(question.encode()).hexdigest()
        _answers[question] = text * 40  # HERE
    return _answers[question]


def main():
    for number in range(8_000):
        answer(f"question {number}")


main()
