from mako.template import Template


def main():
    template = Template("% for row in rows:\n<li>${row} ${row * 2}</li>\n% endfor\n")
    text = template.render(rows=range(300_000))  # HERE
    print(len(text))


if __name__ == "__main__":
    main()
