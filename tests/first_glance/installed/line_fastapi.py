from fastapi import FastAPI
from fastapi.testclient import TestClient

app = FastAPI()
KEPT = {}


@app.get("/report/{count}")
def report(count: int):
    KEPT[count] = [f"row {number}" for number in range(count)]  # HERE
    return {"rows": len(KEPT[count])}


def main():
    with TestClient(app) as client:
        print(client.get("/report/1000000").json())


if __name__ == "__main__":
    main()
