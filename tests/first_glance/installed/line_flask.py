import flask

app = flask.Flask(__name__)
KEPT = []


@app.get("/report")
def report():
    rows = [{"number": number, "name": f"row {number}"} for number in range(20_000)]
    KEPT.append(flask.jsonify(rows * 20))  # HERE
    return KEPT[-1]


def main():
    print(len(app.test_client().get("/report").data))


if __name__ == "__main__":
    main()
