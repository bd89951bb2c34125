"""Finds: over_allocated."""

import sys


class Messages:
    def __init__(self):
        self.data = bytearray()
        #: self.data = bytearray(20_000_000)

    def receive(self, part):
        self.data += part  # HERE
        #: len(part)


messages = Messages()
capacity = 0
while len(messages.data) < 20_000_000 or sys.getsizeof(messages.data) == capacity:  # BEFORE
    capacity = sys.getsizeof(messages.data)  # BEFORE
    messages.receive(b"m" * 8_000)  # BEFORE
print(len(messages.data))
