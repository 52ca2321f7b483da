"""How it works tells no number that the estimator would not."""

from __future__ import annotations

from dashboard.address.example import ARTICLE, EXAMPLE
from dashboard.how_it_works import content
from dashboard.words import units


def test_every_chapter_has_words_and_the_walk_has_the_example_s_numbers():
    told = content.example({**EXAMPLE, **ARTICLE})
    chapters = {chapter.heading: chapter.text for chapter in content.chapters(told)}
    assert all(len(text) > 100 for text in chapters.values())
    walk = chapters["One run, moment by moment"]
    for moment in told.phases.values():
        assert moment.bytes > 0
    assert units.gib(told.peak.bytes) in walk
    assert "54.0 GiB" in walk, "7,241,732,096 parameters x 2 states x 4 bytes"
    assert "13.5 GiB" in walk, "7,241,732,096 parameters x 2 bytes"


def test_the_sum_of_all_largest_parts_is_more_than_the_peak():
    told = content.example({**EXAMPLE, **ARTICLE})
    idea = content.chapters(told)[0].text
    assert units.gib(told.peak.bytes) in idea
