import django
from django.conf import settings

settings.configure(TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}])
django.setup()

from django.template import Context, Template  # noqa: E402


def main():
    template = Template("{% for row in rows %}<li>{{ row }} {{ row }}</li>{% endfor %}")
    text = template.render(Context({"rows": range(100_000)}))  # HERE
    print(len(text))


if __name__ == "__main__":
    main()
