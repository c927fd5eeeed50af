"""A model divided among processes, on the CPU with gloo: it answers like a single process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from services.worker.messages import EngineError
from tests.text.families.family_checks import EXACT, prompt
from tests.text.families.parity import agree
from tests.text.families.torch_session import TorchSession, alone, ends_of, load

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_two_ranks_answer_like_one_and_the_other_ends_with_its_orders(
    family: str, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(family)
    one, two = load(folder), load(folder, tensor_parallel=2)
    try:
        session = TorchSession(two)
        asked = {number: prompt(length, seed=number) for number, length in enumerate((1, 20, 90))}
        for number, tokens in asked.items():
            session.ask(number, tokens)
            session.turn(2)
        session.finish(*asked)
        for number, tokens in asked.items():
            alike = alone(one, tokens)
            agree(session.generated(number), alike, EXACT, ends_of(one))
            assert session.generated(number).tokens == alike.tokens
    finally:
        two.close()
    assert [each.returncode for each in two._others._processes] == [0]


def test_heads_that_cannot_be_divided_are_refused(llama: Path) -> None:
    with pytest.raises(EngineError) as caught:
        load(llama, tensor_parallel=3)
    assert caught.value.code == "UNSUPPORTED"
    assert "ALLM_TENSOR_PARALLEL" in caught.value.message
    assert "heads" in caught.value.message


PROGRAM = """
    import sys
    from pathlib import Path
    from tests.text.families.torch_session import load, alone
    engine = load(Path(sys.argv[1]), tensor_parallel=2)
    print(engine._others._processes[0].pid, flush=True)
    while True:
        alone(engine, [5, 6, 7])
"""


def test_a_dying_rank_ends_the_worker(llama: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(llama)]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None
        rank = int(worker.stdout.readline())
        os.kill(rank, signal.SIGKILL)
        worker.communicate(timeout=60)
        assert worker.returncode != 0
    finally:
        worker.kill()
