"""An ETL with pandas over real data: the Unicode character database that comes with every Python.

It makes a table of all assigned characters, cleans it, takes the words out of their names, and answers which words name
the most characters in each general category.

What to look for. There is a fault in it, one that real pipelines have: `Pipeline.apply` keeps a copy of the table
before every step, "to compare with when something goes wrong". Nothing ever reads them, and they hold most of the
memory at the peak.

    hiwater run -o etl.hiw examples/etl.py
    hiwater report etl.hiw

points at the line `self.history.append(table.copy(deep=True))`. Then run it with `--fixed` and compare the peaks.
"""

from __future__ import annotations

import argparse
import sys
import unicodedata
from collections.abc import Callable

import pandas as pd

Step = Callable[[pd.DataFrame], pd.DataFrame]


def extract() -> pd.DataFrame:
    """Read the character database into a table of one row for each character that has a name."""
    rows = []
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        name = unicodedata.name(character, None)
        if name is not None:
            rows.append(
                (
                    code,
                    name,
                    unicodedata.category(character),
                    unicodedata.bidirectional(character),
                    unicodedata.east_asian_width(character),
                    unicodedata.numeric(character, float("nan")),
                    unicodedata.decomposition(character),
                )
            )
    columns = ["code", "name", "category", "direction", "width", "value", "decomposition"]
    return pd.DataFrame(rows, columns=columns)


def add_plane(table: pd.DataFrame) -> pd.DataFrame:
    """Add the plane that each character is in, and whether it stands for another one."""
    return table.assign(plane=table["code"] // 0x10000, composed=table["decomposition"].str.len() > 0)


def add_names_in_lower_case(table: pd.DataFrame) -> pd.DataFrame:
    """Add names as people write them, without hyphens."""
    return table.assign(plain_name=table["name"].str.replace("-", " ").str.lower())


def one_row_a_word(table: pd.DataFrame) -> pd.DataFrame:
    """Make a row of each word of each name."""
    return table.assign(word=table["plain_name"].str.split()).explode("word", ignore_index=True)


def drop_small_words(table: pd.DataFrame) -> pd.DataFrame:
    """Leave out single letters, numbers, and words that only join others."""
    keep = (table["word"].str.len() > 1) & ~table["word"].isin(["with", "and", "of", "for"])
    return table[keep].reset_index(drop=True)


class Pipeline:
    """Applies steps to a table, one after the other."""

    def __init__(self, *, keep_history: bool) -> None:
        self.keep_history = keep_history
        self.history: list[pd.DataFrame] = []

    def apply(self, table: pd.DataFrame, steps: list[Step]) -> pd.DataFrame:
        """Return `table` after all `steps`."""
        for step in steps:
            if self.keep_history:
                self.history.append(table.copy(deep=True))  # the fault: every table there ever was stays
            table = step(table)
        return table


def add_share(table: pd.DataFrame) -> pd.DataFrame:
    """Add how often each word is used in its category, and its share of all words there."""
    uses = table.groupby(["category", "word"])["code"].transform("size")
    return table.assign(uses=uses, share=uses / table.groupby("category")["code"].transform("size"))


def drop_generated_names(table: pd.DataFrame) -> pd.DataFrame:
    """Leave out ideographs and syllables, whose names are made by rule: their words say nothing."""
    generated = table["name"].str.startswith(("CJK UNIFIED IDEOGRAPH-", "HANGUL SYLLABLE "))
    return table[~generated].reset_index(drop=True)


def most_used_words(table: pd.DataFrame) -> pd.DataFrame:
    """Return, for each category, the three words that name the most characters."""
    counts = table.groupby(["category", "word"], observed=True).size().rename("characters").reset_index()
    ranked = counts.sort_values(["category", "characters", "word"], ascending=[True, False, True])
    return ranked.groupby("category").head(3)


def main() -> None:
    """Run the pipeline and print its answer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--fixed", action="store_true", help="without the fault")
    arguments = parser.parse_args()

    pipeline = Pipeline(keep_history=not arguments.fixed)
    steps = [add_plane, add_names_in_lower_case, one_row_a_word, drop_small_words, add_share, drop_generated_names]
    words = pipeline.apply(extract(), steps)
    answer = most_used_words(words)
    print(f"{len(words):,} words in the names of Unicode {unicodedata.unidata_version}'s characters")
    print(answer[answer["category"].isin(["Lu", "Nd", "Sm", "So"])].to_string(index=False))


if __name__ == "__main__":
    main()
