from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel

app = FastAPI()
KEPT = []


class Item(BaseModel):
    name: str
    price: float


@app.post("/items")
async def items(count: int) -> int:
    KEPT.extend(Item.model_validate({"name": f"item {number}", "price": number}) for number in range(count))  # HERE
    return len(KEPT)


def main():
    with TestClient(app) as client:
        print(client.post("/items?count=120000").json())


if __name__ == "__main__":
    main()
