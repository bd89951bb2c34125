import jinja2

TEMPLATE = jinja2.Environment().from_string("{% for row in rows %}<li>{{ row }} {{ row * 2 }}</li>{% endfor %}")


def main():
    text = TEMPLATE.render(rows=range(300_000))  # HERE
    print(len(text))


if __name__ == "__main__":
    main()
