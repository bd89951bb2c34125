from marshmallow import Schema, fields


class Item(Schema):
    name = fields.Str()
    tags = fields.List(fields.Str())


def main():
    rows = [{"name": "item", "tags": ["a", "b", "c"]}] * 40_000
    schema = Item()
    items = [schema.load(row) for row in rows]  # HERE
    print(len(items))


if __name__ == "__main__":
    main()
