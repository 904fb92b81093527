"""The index finds with early stops what reading everything would find."""

import random

import pytest

from template_api.ranking import postings as module
from template_api.ranking.building import PostingsBuilder, Terms
from template_api.ranking.postings import Clause, Order, Postings

WORDS = [f"w{number}" for number in range(60)]


def built(seed: int, size: int) -> tuple[Postings, Terms]:
    source = random.Random(seed)
    terms = Terms()
    builder = PostingsBuilder(terms)
    weights = [1 / (rank + 1) for rank in range(len(WORDS))]
    for _ in range(size):
        builder.add(" ".join(source.choices(WORDS, weights, k=source.randint(1, 30))), [(source.choice(WORDS), 7)])
    return builder.build(), terms


def everything(size: int) -> Order:
    return Order(range(size), range(size))


def exhaustive(postings: Postings, clauses: list[Clause], size: int) -> dict[int, float]:
    """Score every template by the definition: the best term of each clause, times its weight and its idf."""
    scores = {}
    for slot in range(size):
        score = 0.0
        for clause in clauses:
            idf = postings.ideal(clause.terms) / 2.2
            in_slot = [
                posting.score(slot) for term in clause.terms for part in postings.parts if (posting := part.get(term))
            ]
            score += clause.weight * idf * max(in_slot, default=0.0)
        if score > 0:
            scores[slot] = score
    return scores


@pytest.mark.parametrize("seed", range(12))
def test_the_best_are_those_of_an_exhaustive_search(seed: int) -> None:
    size = 300
    postings, terms = built(seed, size)
    source = random.Random(seed)
    known = sorted(set(terms.values()))
    clauses = [
        Clause(tuple(source.sample(known, source.choice((1, 1, 3)))), source.choice((1, 2, 0.9)))
        for _ in range(source.randint(1, 6))
    ]
    accept = set(range(0, size, 3)) if seed % 2 else None
    expected = exhaustive(postings, clauses, size)
    wanted = [slot for slot in expected if accept is None or slot in accept]
    best = postings.best(clauses, 5, everything(size), accept, exact=True)
    order = sorted(wanted, key=lambda slot: (-round(expected[slot], 9), slot))[:5]
    assert [round(score, 6) for _, score in best] == [round(expected[slot], 6) for slot in order]
    assert {slot for slot, _ in best} <= set(wanted)


def test_after_many_postings_common_words_only_reorder_what_rare_ones_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_POSTINGS", 20)
    monkeypatch.setattr(module, "_MOST_CANDIDATES", 10)
    postings, terms = built(1, 300)
    clauses = [Clause((terms[word],), 1.0) for word in WORDS[:40]]
    best = postings.best(clauses, 10, everything(300), exact=False)
    expected = exhaustive(postings, clauses, 300)
    assert len(best) == 10
    assert all(score == pytest.approx(expected[slot]) for slot, score in best)


def test_all_that_are_asked_for_are_found_after_many_postings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_POSTINGS", 20)
    monkeypatch.setattr(module, "_MOST_CANDIDATES", 10)
    postings, terms = built(1, 300)
    clauses = [Clause((terms[word],), 1.0) for word in WORDS[:40]]
    assert len(postings.best(clauses, 300, everything(300), exact=False)) == len(exhaustive(postings, clauses, 300))


@pytest.mark.parametrize("each", [1, 3, 10, 60])
def test_a_filter_loses_no_match_however_many_postings_were_read(monkeypatch: pytest.MonkeyPatch, each: int) -> None:
    monkeypatch.setattr(module, "_MOST_POSTINGS", 20)
    postings, terms = built(1, 300)
    clauses = [Clause((terms[word],), 1.0) for word in WORDS]
    expected = exhaustive(postings, clauses, 300)
    accept = frozenset(range(0, 300, each))  # one in so many
    wanted = sorted(accept & expected.keys(), key=lambda slot: (-round(expected[slot], 9), slot))[:10]
    best = postings.best(clauses, 10, everything(300), accept, exact=True)
    assert [slot for slot, _ in best] == wanted
    assert all(score == pytest.approx(expected[slot]) for slot, score in best)


def test_a_word_said_beyond_all_measure_keeps_its_template() -> None:
    terms = Terms()
    builder = PostingsBuilder(terms)
    builder.add("pump " * 70_000, [])
    builder.add("valve", [])
    postings = builder.build()
    ((slot, score),) = postings.best([Clause((terms["pump"],), 1.0)], 5, everything(2), exact=True)
    assert slot == 0
    assert score > 0
    assert not postings.has(1, terms["pump"])


def test_a_score_looked_up_is_the_one_worked_out_with_all_others() -> None:
    postings, terms = built(3, 200)
    (part,) = postings.parts
    posting = part[terms[WORDS[5]]]
    looked_up = [posting.score(slot) for slot in range(201)]
    slots, scores = posting.scored()
    assert [score for score in looked_up if score] == list(scores)
    assert [slot for slot, score in enumerate(looked_up) if score] == list(slots)
    assert [posting.score(slot) for slot in range(201)] == looked_up
    later = PostingsBuilder(terms, 200)
    later.add(WORDS[5], [])
    posting = later.build(postings).parts[1][terms[WORDS[5]]]
    assert [slot for slot in range(202) if posting.score(slot)] == [200]
