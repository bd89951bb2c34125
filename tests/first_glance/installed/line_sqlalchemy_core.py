from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert, select

TABLE = Table("items", MetaData(), Column("id", Integer, primary_key=True), Column("name", String))


def fill(engine):
    TABLE.metadata.create_all(engine)
    with engine.begin() as connection:
        for first in range(0, 200_000, 1000):
            connection.execute(insert(TABLE), [{"name": f"item {first + number} " * 5} for number in range(1000)])


def main():
    engine = create_engine("sqlite://")
    fill(engine)
    with engine.connect() as connection:
        rows = connection.execute(select(TABLE)).all()  # HERE
    print(len(rows))


if __name__ == "__main__":
    main()
