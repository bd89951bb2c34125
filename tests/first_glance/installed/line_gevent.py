import gevent
from gevent.pool import Pool


def fetch(count):
    gevent.sleep(0.01)
    return [f"row {number}" for number in range(count)]  # HERE


def main():
    print(sum(map(len, Pool(4).map(fetch, [200_000] * 4))))


if __name__ == "__main__":
    main()
