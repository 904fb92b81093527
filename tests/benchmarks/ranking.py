"""How fast the ranking is built and searched, on synthetic templates.

    python -m tests.benchmarks.ranking [templates [words of content]]

The texts have a vocabulary of 50,000 words whose frequencies follow Zipf's law, the common English words on top.
Queries are never asked twice: some words as the templates have them, some of them misspelt.
"""

import gc
import random
import resource
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from time import perf_counter

from template_api.ranking import Document, Ranking, SearchIndex, prepared
from template_api.ranking.tokens import STOP_WORDS

VOCABULARY = 50_000
SYLLABLES = [onset + vowel for onset in (*"bdfgklmnprstvz", "br", "st", "tr") for vowel in "aeiou"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Made:
    """A template of these texts."""

    key: str
    title: str
    labels: str
    short_description: str
    content: str
    cells: str
    facets: tuple[str, ...]

    def document(self) -> Document:
        """Return it as an index takes it."""
        texts = prepared(self.title, self.labels, self.short_description, self.content, self.cells)
        return Document(self.key, texts, facets=self.facets)


class Texts:
    """Draws words by Zipf's law; the same seed gives the same texts, and every seed draws from the same words."""

    def __init__(self, seed: int = 7) -> None:
        source = random.Random(7)
        made = {"".join(source.choices(SYLLABLES, k=source.randint(2, 5))) for _ in range(VOCABULARY * 2)}
        common, rest = sorted(STOP_WORDS), sorted(made - STOP_WORDS)
        source.shuffle(common)
        source.shuffle(rest)
        self.random = random.Random(seed)
        self.vocabulary = (common + rest)[:VOCABULARY]
        self.content_words = self.vocabulary[len(common) :]
        self._cumulated = list(accumulate(1 / rank for rank in range(1, VOCABULARY + 1)))

    def draw(self, count: int) -> list[str]:
        """Return `count` words."""
        return self.random.choices(self.vocabulary, cum_weights=self._cumulated, k=count)

    def document(self, number: int, size: int) -> Made:
        """Return a template with about `size` words of content."""
        content = " ".join(self.draw(self.random.randint(size // 2, size * 3 // 2)))
        return Made(
            key=f"{number:08}",
            title=" ".join(self.draw(6)).capitalize(),
            labels=" ".join(self.draw(5)),
            short_description=" ".join(self.draw(20)),
            content=content,
            cells=" ".join(self.draw(size // 4)),
            facets=(f"tenth:{number % 10}",),
        )

    def query(self, count: int, typos: int) -> str:
        """Return `count` different words as a template's text would give them, stop words aside, some misspelt."""
        several = [word for word in dict.fromkeys(self.draw(count * 5 + 20)) if word not in STOP_WORDS]
        chosen = several[:count]
        for at in self.random.sample(range(len(chosen)), typos):
            chosen[at] = self._misspell(chosen[at])
        return " ".join(chosen)

    def _misspell(self, word: str) -> str:
        at = self.random.randrange(1, len(word))
        return word[:at] + self.random.choice(LETTERS) + word[at + self.random.randint(0, 1) :]


def documents(count: int, size: int) -> Iterator[Made]:
    """Yield `count` templates of about `size` words."""
    texts = Texts()
    return (texts.document(number, size) for number in range(count))


def main(count: int, size: int) -> None:
    """Build, search, print."""
    began = perf_counter()
    made = list(documents(count, size))
    print(f"{count} templates of {size} words: made in {perf_counter() - began:.2f} s")
    began = perf_counter()
    prepared_ones = [each.document() for each in made]
    print(f"  prepared, as an import does, in {perf_counter() - began:.2f} s")
    before = resident()
    began = perf_counter()
    index = SearchIndex()
    for document in prepared_ones:
        index.put(document)
    index.commit()
    print(f"  indexed, as a start does, in {perf_counter() - began:.2f} s, {resident() - before:.0f} MiB")
    began = perf_counter()
    index.put(replace(made[count // 2], title="Changed").document())
    index.commit()
    print(f"  one template changed: {(perf_counter() - began) * 1000:.0f} ms")
    searches(index.ranking)


def searches(ranking: Ranking) -> None:
    """Measure searches of several kinds."""
    texts = Texts(seed=8)
    measure("3 words, 1 typo", ranking, lambda: texts.query(3, 1))
    measure("3 words", ranking, lambda: texts.query(3, 0))
    measure("1 word, 1 typo", ranking, lambda: texts.query(1, 1))
    measure("10 words, 2 typos", ranking, lambda: texts.query(10, 2))
    measure("2,000 characters", ranking, lambda: texts.query(300, 3)[:2000], 20)
    measure("3 of the commonest words", ranking, lambda: " ".join(texts.random.sample(texts.content_words[:60], 3)))
    measure("only stop words", ranking, lambda: " ".join(texts.random.sample(sorted(STOP_WORDS), 150)), 20)
    measure("3 words, filtered to a tenth", ranking, lambda: texts.query(3, 1), filters=[["tenth:0"]])
    measure("4,000 characters unknown", ranking, lambda: unknown(texts.random), 20)
    report("suggestions", timed(lambda text: ranking.suggest(text, 8), [texts.query(2, 0)[:-2] for _ in range(200)]))


def unknown(source: random.Random) -> str:
    """Return 4,000 characters of words that no template has."""
    return " ".join("".join(source.choices(LETTERS, k=9)) for _ in range(400))


def measure(
    name: str, ranking: Ranking, query: Callable[[], str], times: int = 200, filters: Sequence[Sequence[str]] = ()
) -> None:
    """Print the median and the 99th percentile of so many searches."""
    report(name, timed(lambda text: ranking.search(text, 20, 0, filters), [query() for _ in range(times)]))


def timed(act: Callable[[str], object], texts: Sequence[str]) -> list[float]:
    """Return how many milliseconds the calls take, sorted."""
    taken = []
    for text in texts:
        began = perf_counter()
        act(text)
        taken.append((perf_counter() - began) * 1000)
    return sorted(taken)


def report(name: str, taken: Sequence[float]) -> None:
    """Print the median and the 99th percentile of sorted times."""
    print(f"  {name:30} p50 {statistics.median(taken):7.2f} ms   p99 {taken[len(taken) * 99 // 100]:7.2f} ms")


def resident() -> float:
    """Return the MiB of memory that this process holds (Linux)."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000, int(sys.argv[2]) if len(sys.argv) > 2 else 300)
