"""Finds: nothing."""


def expire(cache):
    for key in [key for key in cache if key % 3]:
        del cache[key]
    return len(cache)


print(expire({number * 1_009: None for number in range(200_000)}))
