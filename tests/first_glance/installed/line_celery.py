from celery import Celery

app = Celery("shop", broker="memory://", backend="cache+memory://")
app.conf.task_always_eager = True
KEPT = []


@app.task
def build(count):
    KEPT.append([str(number) * 4 for number in range(count)])  # HERE
    return count


def main():
    print(build.delay(700_000).get())


if __name__ == "__main__":
    main()
