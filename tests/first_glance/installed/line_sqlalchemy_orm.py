from sqlalchemy import create_engine, insert, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column


class Base(DeclarativeBase):
    pass


class Item(Base):
    __tablename__ = "items"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


def main():
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        for first in range(0, 60_000, 1000):
            session.execute(insert(Item), [{"name": f"item {first + number}"} for number in range(1000)])
        items = session.scalars(select(Item)).all()  # HERE
        print(len(items))


if __name__ == "__main__":
    main()
