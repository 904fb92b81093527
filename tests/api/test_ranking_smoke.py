from template_api.ranking import Document, Match, Ranking


def test_the_template_with_the_word_in_its_title_is_first() -> None:
    ranking = Ranking(
        [
            Document("a", "Modbus gateway", "industrial", "Reads holding registers", "Polls a PLC every second", ""),
            Document("b", "Weather station", "sensors", "Reads temperature", "Its gateway forwards to a database", ""),
        ]
    )
    hits = ranking.search("gatewy", 10).hits
    assert [hit.key for hit in hits] == ["a", "b"]
    assert hits[0].matched == (Match("gatewy", "gateway"),)
    assert 1 >= hits[0].score > hits[1].score > 0
