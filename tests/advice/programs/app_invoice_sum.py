"""Finds: list."""


class Invoice:
    def __init__(self, lines):
        self.lines = lines

    def total(self, tax):
        net = sum([price * count * 1.01 for price, count in self.lines])  # HERE
        #: net = sum(price * count * 1.01 for price, count in self.lines)
        return net * (1 + tax)


invoice = Invoice([(19.5, 3), (4.25, 10)] * 250_000)
print(round(invoice.total(0.19), 2))
