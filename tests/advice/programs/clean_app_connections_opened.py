"""Finds: nothing."""


class Connection:
    opened = 0

    def __init__(self, number):
        Connection.opened += 1
        self.number = number


def main(count):
    for connection in [Connection(number) for number in range(count)]:
        if connection.number == Connection.opened - 1:
            return connection.number
    return None


print(main(60_000))
