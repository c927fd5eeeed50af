"""What counts as a call that was not recognised."""

from __future__ import annotations

from services.cli.verify.tools_and_schemas import unread


def test_a_call_in_any_markup_is_told_from_words() -> None:
    for text in (
        'Sure: {"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}',
        "<function=get_weather>\n<parameter=city>\nParis\n</parameter>",
        '[get_weather(city="Paris", days=3)]',
    ):
        assert unread(text)
    for text in ("The weather in Paris is fine.", "I could call get_weather for the city of Paris.", "[1] {city}"):
        assert not unread(text)
