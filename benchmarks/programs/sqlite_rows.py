"""A database in memory: small and large mallocs of a C library, and rows as tuples."""

import sqlite3


def main() -> None:
    database = sqlite3.connect(":memory:")
    database.execute("create table events (id integer primary key, name text, size real)")
    rows = ((number, f"name {number % 1000}", number / 7) for number in range(200_000))
    database.executemany("insert into events values (?, ?, ?)", rows)
    database.execute("create index by_name on events (name)")
    for _ in range(3):
        found = database.execute(
            "select name, count(*), sum(size) from events group by name order by 3 desc"
        ).fetchall()
        everything = database.execute("select * from events order by size").fetchall()
    print(len(found), len(everything))


main()
