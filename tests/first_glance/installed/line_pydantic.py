import pydantic


class Item(pydantic.BaseModel):
    name: str
    tags: list[str]


class Order(pydantic.BaseModel):
    items: list[Item]


def main():
    text = '{"items": [' + ",".join(f'{{"name": "n{n}", "tags": ["a{n}"]}}' for n in range(80_000)) + "]}"
    order = Order.model_validate_json(text)  # HERE
    print(len(order.items))


if __name__ == "__main__":
    main()
