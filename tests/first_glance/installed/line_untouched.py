import asyncio
import decimal
import email.message
import http.client
import unittest.mock
import xml.dom.minidom

USED = (asyncio, decimal, email.message, http.client, unittest.mock, xml.dom.minidom)


def main():
    buffer = bytes(38_000_000)  # HERE
    print(len(buffer), len(USED))


if __name__ == "__main__":
    main()
