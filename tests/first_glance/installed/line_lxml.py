from lxml import etree


def main():
    text = b"<a>" + b"".join(b"<row n='%d'><c>text %d</c></row>" % (n, n) for n in range(200_000)) + b"</a>"
    tree = etree.fromstring(text)  # HERE
    print(len(tree))


if __name__ == "__main__":
    main()
