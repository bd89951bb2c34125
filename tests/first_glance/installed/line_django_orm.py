import django
from django.conf import settings

settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}, INSTALLED_APPS=[], USE_TZ=False
)
django.setup()

from django.db import connection, models  # noqa: E402


class Item(models.Model):
    name = models.CharField(max_length=100)

    class Meta:
        app_label = "shop"


def main():
    with connection.schema_editor() as editor:
        editor.create_model(Item)
    for first in range(0, 50_000, 1000):
        Item.objects.bulk_create([Item(name=f"item {first + number}") for number in range(1000)])
    items = list(Item.objects.all())  # HERE
    print(len(items))


if __name__ == "__main__":
    main()
