"""Finds: arenas."""

import time


def serve(requests):
    #: active = {number: ("session", f"user {number}") for number in range(0, requests, 2_000)}
    sessions = {number: ("session", f"user {number}") for number in range(requests)}  # HERE
    #: sessions = {number: ("session", f"user {number}") for number in range(requests)}
    #: return active
    return {number: sessions[number] for number in range(0, requests, 2_000)}


active = serve(160_000)
time.sleep(0.1)
print(len(active))
