"""The table that compares the torch runtime with its peers."""

from __future__ import annotations

from dataclasses import replace

from bench.level import Level, LevelResult, summarise
from bench.noise import Noise
from bench.prompts import PromptSet
from bench.torch_contender import Server
from bench.torch_peers import Entry, markdown

QUIET = Noise(steal_percent=0.0, other_percent=0.0, client_cpu_s=0.0, server_cpu_s=0.0)


def entry(server: Server, clients: int, number: int, speed: float) -> Entry:
    nothing: LevelResult = summarise(Level(PromptSet.UNIQUE, clients, 0, 0), [], 1.0, QUIET)
    return Entry(server, clients, number, 0.0, 1, replace(nothing, tokens_per_s=speed))


def rows(*entries: Entry) -> list[list[str]]:
    table = [line for line in markdown(entries, 2, "these releases.").splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def test_medians_of_the_rounds_and_our_ratio_to_each() -> None:
    shown = rows(
        *(entry(Server.ALLM, 8, number, speed) for number, speed in enumerate((100.0, 160.0, 150.0))),
        *(entry(Server.TRANSFORMERS, 8, number, speed) for number, speed in enumerate((90.0, 100.0, 110.0))),
    )
    assert [row[:4] for row in shown] == [
        ["8", "allm", "150.0", ""],
        ["8", "transformers serve", "100.0", "1.50x"],
    ]
    assert shown[0][7] == "40%"


def test_a_missed_target_is_reported() -> None:
    def ratio(clients: int) -> str:
        return rows(entry(Server.ALLM, clients, 0, 149.0), entry(Server.TRANSFORMERS, clients, 0, 100.0))[1][3]

    assert ratio(1) == ratio(8) == "1.49x (target 1.5x)"
    assert ratio(32) == "1.49x"


def test_unmeasured_values_have_no_ratio() -> None:
    assert rows(entry(Server.TRANSFORMERS, 1, 0, 17.0))[0][2:4] == ["17.0", ""]
    assert rows(entry(Server.ALLM, 1, 0, 0.0), entry(Server.TRANSFORMERS, 1, 0, 17.0))[1][3] == ""
