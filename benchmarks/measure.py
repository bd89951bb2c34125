"""Runs one command: `python -I -S measure.py LOG COMMAND…` prints its status, wall nanoseconds, peak RSS in bytes,
microseconds of user and of system time, and minor page faults.

A process of its own, and a bare one, because the kernel hands a parent's peak RSS on to the child that it starts: only
a parent smaller than any Python program leaves the child's figure alone. So nothing is imported here that the
interpreter has not loaded already.
"""

import os
import sys
import time


def main(log_path: str, *command: str) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    places = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, null, 1), (os.POSIX_SPAWN_DUP2, log, 2)]
    start = time.perf_counter_ns()
    child = os.posix_spawnp(command[0], command, os.environ, file_actions=places)
    _, status, usage = os.wait4(child, 0)
    wall_ns = time.perf_counter_ns() - start
    times = [round(1e6 * seconds) for seconds in (usage.ru_utime, usage.ru_stime)]
    print(os.waitstatus_to_exitcode(status), wall_ns, usage.ru_maxrss * 1024, *times, usage.ru_minflt)


main(*sys.argv[1:])
