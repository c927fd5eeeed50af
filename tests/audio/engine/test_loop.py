"""The batch loop: how windows are batched, when they are retried, and the messages that a request gets."""

from __future__ import annotations

import time

import pytest

from services.audio.engine.mel import Closed, RequestOpened, Seek, Taken
from services.audio.engine.messages import Decoding, Finished, LanguageFound, Stepped, Transcribed
from services.audio.engine.runtime import Decoded
from services.worker.messages import Cancel, EngineError, RequestRefused, Stop
from tests.audio.engine.scripted_whisper import BEGIN, GOOD, LoopSession, Scripted, chunk, spoken

DETECT = Decoding()
ENGLISH = Decoding(language="en")
WHOLE = Decoding(language="en", vad=None)
LOOPING = Decoded(spoken(*[7] * 60), GOOD, 0.0)  # one word repeated
DOUBTED = Decoded(spoken(8), -1.5, 0.0)
SILENT = Decoded(spoken(9), -1.5, 0.9)


def test_a_request_gets_its_text_and_its_end() -> None:
    session = LoopSession(Scripted())
    session.ask(1, 11)
    session.work(1)
    assert session.text(1) == " w11"
    finished = session.of(Finished)[0]
    assert (finished.seconds, finished.speech_seconds, finished.tokens) == (30.0, 4.0, 1)
    assert session.counters.running == session.counters.waiting == 0


def test_windows_of_all_requests_are_decoded_together() -> None:
    session = LoopSession(Scripted(batch=4))
    for request in (1, 2, 3):
        session.ask(request, 10 + request)
    session.work(1, 2, 3)
    assert session.runtime.decoded == [[11, 12, 13]]
    assert max(stepped.counters.windows for stepped in session.of(Stepped)) == 3


def test_a_lone_window_is_not_kept_waiting() -> None:
    session = LoopSession(Scripted(batch=8))
    session.open(1)
    session.put(chunk(1, 0, 11))
    session.turn()
    session.turn()
    assert session.runtime.decoded == [[11]]
    assert session.text(1) == " w11"


def test_a_window_that_arrives_joins_the_batch_that_is_being_filled() -> None:
    session = LoopSession(Scripted(batch=4))
    session.ask(1, 11)
    session.turn()
    session.ask(2, 12)
    session.work(1, 2)
    assert session.runtime.decoded == [[11, 12]]


def test_a_batch_has_a_bound_and_windows_may_be_encoded_together() -> None:
    session = LoopSession(Scripted(batch=3, together=2))
    session.ask(1, 11, 12, 13, 14, 15)
    session.work(1)
    assert [len(batch) for batch in session.runtime.decoded] == [3, 2]
    assert all(len(batch) <= 2 for batch in session.runtime.encoded)


def test_segments_are_sent_in_file_order_despite_failures() -> None:
    session = LoopSession(Scripted(batch=4))
    session.runtime.script[11] = [LOOPING, LOOPING, LOOPING]
    session.ask(1, 11, 12, 13)
    session.work(1)
    assert session.text(1) == " w11 w12 w13"
    assert [segment.index for segment in session.segments(1)] == [0, 1, 2]
    assert [round(segment.start) for segment in session.segments(1)] == [0, 30, 60]


def test_a_request_does_not_get_far_ahead_of_a_window_that_fails() -> None:
    session = LoopSession(Scripted(batch=2))
    session.runtime.script[11] = [DOUBTED] * 50
    session.ask(1, *range(11, 41))
    while not session.of(Transcribed):
        session.turn()
    assert len({name for batch in session.runtime.encoded for name, _ in batch}) <= 4


def test_every_client_gets_its_share_of_a_batch() -> None:
    session = LoopSession(Scripted(batch=4))
    session.ask(1, *range(100, 120), client="many")
    session.ask(2, *range(200, 220), client="many")
    session.turn()
    session.ask(3, 300, client="few")
    session.turn()
    assert session.runtime.encoded[1][0][0] == 300


def test_requests_of_one_client_take_turns() -> None:
    session = LoopSession(Scripted(batch=4))
    session.ask(1, *range(100, 110))
    session.ask(2, *range(200, 210))
    for _ in range(4):
        session.turn()
    assert [batch[0][0] for batch in session.runtime.encoded] == [100, 200, 101, 201]


def test_only_failing_rows_are_decoded_again() -> None:
    session = LoopSession(Scripted(batch=4))
    session.runtime.script[12] = [LOOPING, DOUBTED]
    session.ask(1, 11)
    session.ask(2, 12)
    session.work(1, 2)
    assert session.runtime.decoded == [[11, 12], [12], [12]]
    assert [step.temperature for step in session.runtime.steps] == [0.0, 0.0, 0.2]
    assert session.segments(2)[0].temperature == 0.2


def test_a_window_that_was_not_filled_up_is_filled_up_before_it_is_sampled() -> None:
    session = LoopSession(Scripted())
    session.runtime.script[11] = [LOOPING]
    session.ask(1, 11)
    session.work(1)
    assert session.runtime.encoded == [[(11, 1500)], [(11, 3000)]]
    assert session.segments(1)[0].temperature == 0.0


def test_windows_may_be_filled_up_always() -> None:
    session = LoopSession(Scripted(), whole_windows=True)
    session.ask(1, 11)
    session.work(1)
    assert session.runtime.encoded == [[(11, 3000)]]


def test_without_voice_detection_windows_are_filled_up() -> None:
    session = LoopSession(Scripted())
    session.ask(1, 11, decoding=WHOLE)
    session.work(1)
    assert session.runtime.encoded == [[(11, 3000)]]


def test_likeliest_result_is_used_if_every_temperature_fails() -> None:
    session = LoopSession(Scripted())
    tries = [Decoded(spoken(50 + index), -3.0 + (index == 2), 0.0) for index in range(6)]
    session.runtime.script[11] = [DOUBTED, *tries]
    session.ask(1, 11)
    session.work(1)
    assert session.text(1) == " w52"
    assert [step.temperature for step in session.runtime.steps[1:]] == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]


def test_a_single_temperature_is_all_that_is_tried() -> None:
    session = LoopSession(Scripted())
    session.runtime.script[11] = [DOUBTED] * 9
    session.ask(1, 11, decoding=Decoding(language="en", vad=None, temperatures=(0.3,)))
    session.work(1)
    assert [step.temperature for step in session.runtime.steps] == [0.3]


def test_silence_gives_no_text_and_is_not_tried_again() -> None:
    session = LoopSession(Scripted())
    session.runtime.script[11] = [SILENT]
    session.ask(1, 11)
    session.work(1)
    assert session.segments(1) == []
    assert not session.of(LanguageFound)
    assert len(session.runtime.decoded) == 1


def test_language_is_detected_in_the_first_window_and_sent_once() -> None:
    session = LoopSession(Scripted(batch=4))
    session.ask(1, 11, 12, 13, decoding=DETECT)
    session.work(1)
    assert session.of(LanguageFound) == [LanguageFound(1, "de", 0.75)]
    assert session.runtime.encoded[0] == [(11, 1500)]
    assert all(prompt[1] == 1011 for prompt in session.runtime.prompts.values())
    reported = [type(message) for message in session.sent if isinstance(message, LanguageFound | Transcribed)]
    assert reported[0] is LanguageFound


def test_a_language_found_in_silence_does_not_count() -> None:
    session = LoopSession(Scripted())
    session.runtime.script[11] = [SILENT]
    session.open(1, Decoding(vad=None))
    session.put(chunk(1, 0, 11, seconds=30))
    while not session.of(Stepped) or session.runtime.decoded != [[11]]:
        session.turn()
    session.put(chunk(1, 1, 12, start=30), Closed(1, 34 * 16000))
    found: list[int] = []
    session.runtime.detect = lambda windows: found.extend(windows) or [("en", 0.9)]  # type: ignore[method-assign]
    session.work(1)
    assert found == [12]
    assert session.of(LanguageFound) == [LanguageFound(1, "en", 0.9)]


def test_a_window_begins_where_the_text_of_the_one_before_ended() -> None:
    session = LoopSession(Scripted())
    session.runtime.script[11] = [Decoded([*spoken(5, end=12.0), BEGIN + 600, 6, 7], GOOD, 0.0)]
    session.open(1, WHOLE)
    session.put(chunk(1, 0, 11, seconds=30))
    while not session.of(Transcribed):
        session.turn()
    assert Seek(1, 1200) in session.handed
    assert session.text(1) == " w5"
    session.put(chunk(1, 1, 12, start=12))
    while not session.runtime.prompts.get(12):
        session.turn()
    words = session.runtime.vocabulary
    assert session.runtime.prompts[12] == [words.sot_prev, *spoken(5, end=12.0), *words.start("en", "transcribe")]


def test_text_that_was_sampled_freely_does_not_prompt_the_next_window() -> None:
    session = LoopSession(Scripted())
    session.runtime.script[11] = [DOUBTED] * 4
    session.open(1, WHOLE)
    session.put(chunk(1, 0, 11, seconds=30))
    while not session.of(Transcribed):
        session.turn()
    assert session.segments(1)[0].temperature == 0.8
    session.put(chunk(1, 1, 12, start=30))
    while not session.runtime.prompts.get(12):
        session.turn()
    assert session.runtime.prompts[12] == session.runtime.vocabulary.start("en", "transcribe")


def test_the_callers_prompt_is_before_every_window_of_speech() -> None:
    session = LoopSession(Scripted())
    session.open(1, prompt="w1 w2")
    session.put(chunk(1, 0, 11), chunk(1, 1, 12), Closed(1, 480_000))
    session.work(1)
    words = session.runtime.vocabulary
    expected = [words.sot_prev, 1, 2, *words.start("en", "transcribe")]
    assert session.runtime.prompts[11] == session.runtime.prompts[12] == expected


def test_a_long_prompt_leaves_room_for_the_text() -> None:
    session = LoopSession(Scripted())
    session.open(1, prompt=" ".join(f"w{index}" for index in range(500)))
    session.put(chunk(1, 0, 11), Closed(1, 480_000))
    session.work(1)
    prompt = session.runtime.prompts[11]
    assert prompt[1:224] == list(range(277, 500))
    assert len(prompt) + session.runtime.steps[0].max_tokens <= session.runtime.context_tokens


def test_words_and_logprobs_where_they_are_asked_for() -> None:
    session = LoopSession(Scripted(batch=4))
    session.runtime.script[11] = [Decoded(spoken(1, 2, 3, end=2.0), GOOD, 0.0)]
    session.ask(1, 11, decoding=Decoding(language="en", words=True, logprobs=True))
    session.ask(2, 12)
    session.work(1, 2)
    segment = session.segments(1)[0]
    assert segment.words is not None
    assert [(word.word, word.start, word.end) for word in segment.words] == [
        (" w1", 0.0, 0.5),
        (" w2", 0.5, 1.0),
        (" w3", 1.0, 1.5),
    ]
    assert segment.logprobs is not None
    assert [(one.piece, round(one.logprob, 2)) for one in segment.logprobs] == [
        (b" w1", -0.69),
        (b" w2", -0.69),
        (b" w3", -0.69),
    ]
    assert session.segments(2)[0].words is session.segments(2)[0].logprobs is None
    assert session.runtime.aligned == [[11]]


def test_a_cancelled_request_is_forgotten_between_two_steps() -> None:
    session = LoopSession(Scripted(batch=4))
    session.ask(1, *range(11, 31))
    session.ask(2, 50)
    session.turn()
    session.cancel(1)
    session.work(2)
    assert session.segments(1) == []
    assert [message.request for message in session.of(Finished)] == [2]
    assert session.runtime.decoded == [[50]]


def test_a_request_that_cannot_be_computed_is_refused_and_the_others_go_on() -> None:
    session = LoopSession(Scripted(batch=4, together=4))
    session.runtime.faults[12] = EngineError("INTERNAL", "no")
    for request in (1, 2, 3):
        session.ask(request, 10 + request)
    session.work(1, 3)
    assert [(one.request, one.code) for one in session.of(RequestRefused)] == [(2, "INTERNAL")]
    assert Cancel(2) in session.handed
    assert (session.text(1), session.text(3)) == (" w11", " w13")


def test_batches_are_smaller_once_memory_ran_out() -> None:
    session = LoopSession(Scripted(batch=4, together=4))
    decode, sizes = session.runtime.decode, []

    def scarce(windows, prompts, step):
        sizes.append(len(windows))
        if len(windows) > 2:
            raise EngineError("OUT_OF_MEMORY", "full")
        return decode(windows, prompts, step)

    session.runtime.decode = scarce  # type: ignore[method-assign]
    session.ask(1, *range(11, 19))
    session.work(1)
    assert session.text(1) == "".join(f" w{name}" for name in range(11, 19))
    assert sizes == [4, 1, 1, 1, 1, 2, 2]


def test_partials_only_where_nothing_final_waits_and_only_the_newest() -> None:
    session = LoopSession(Scripted())
    session.open(1, Decoding(language="en", live=True))
    session.ask(2, 21)
    session.put(chunk(1, 0, 30, partial=True), chunk(1, 0, 31, seconds=3, partial=True))
    session.work(2)
    assert session.partials(1) == []
    session.turn()
    partial = session.partials(1)[0]
    assert (partial.text, partial.start, partial.end) == (" w31", 0.0, 3.0)
    assert session.runtime.steps[-1].beam_size == 1
    assert session.runtime.prompts[31][-1] == session.runtime.vocabulary.no_timestamps
    assert Taken(1, partial=True) in session.handed


def test_a_partial_is_dropped_when_its_final_is_there_first() -> None:
    session = LoopSession(Scripted())
    session.open(1, Decoding(language="en", live=True))
    session.put(chunk(1, 0, 30, partial=True), chunk(1, 0, 31), Closed(1, 480_000))
    session.work(1)
    assert session.partials(1) == []
    assert Taken(1, partial=True) in session.handed


def test_every_step_has_its_heartbeat() -> None:
    session = LoopSession(Scripted(batch=2))
    session.runtime.script[11] = [LOOPING, DOUBTED]
    session.ask(1, 11, 12, 13)
    session.work(1)
    steps = [stepped.counters.steps for stepped in session.of(Stepped)]
    calls = len(session.runtime.encoded) + len(session.runtime.decoded)
    assert set(range(1, calls + 1)) <= set(steps)


def test_messages_for_an_ended_request_are_ignored() -> None:
    session = LoopSession(Scripted())
    session.put(chunk(9, 0, 1), Closed(9, 0), Cancel(9))
    session.ask(1, 11)
    session.work(1)
    assert session.text(1) == " w11"


def test_no_sound_is_an_empty_text() -> None:
    session = LoopSession(Scripted())
    session.open(1)
    session.put(Closed(1, 0))
    session.work(1)
    assert session.of(Finished) == [Finished(1, "", 0.0, 0.0, 0)]


def test_stop_ends_the_loop() -> None:
    session = LoopSession(Scripted())
    session.put(Stop())
    assert not session.loop.turn()


@pytest.mark.parametrize("languages", [["en"], ["en", "de"]])
def test_requests_of_different_languages_share_a_batch(languages: list[str]) -> None:
    session = LoopSession(Scripted(batch=4))
    for request, language in enumerate(languages):
        session.ask(request, 11 + request, decoding=Decoding(language=language))
    session.work(*range(len(languages)))
    assert session.runtime.decoded == [[11 + request for request in range(len(languages))]]


def test_rest_of_a_window_is_decoded_separately() -> None:
    session = LoopSession(Scripted())
    stopped = [*spoken(5, end=2.0), BEGIN + 100]
    session.runtime.script[11] = [Decoded(stopped, GOOD, 0.0), Decoded(spoken(12), GOOD, 0.0)]
    window = chunk(1, 0, 11, seconds=6, start=10)
    window.mel[0, 200] = 11  # identifies the rest to the runtime
    session.open(1)
    session.put(window, chunk(1, 1, 13, start=20), Closed(1, 30 * 16000))
    session.work(1)
    assert [(one.text, one.start, one.end, one.seek) for one in session.segments(1)] == [
        (" w5", 10.0, 12.0, 1000),
        (" w12", 12.0, 13.0, 1200),
        (" w13", 20.0, 21.0, 2000),
    ]
    assert session.of(Finished)[0].speech_seconds == 10.0


def test_text_after_the_last_border_belongs_to_the_window() -> None:
    session = LoopSession(Scripted())
    session.runtime.script[11] = [Decoded([*spoken(5, end=2.0), BEGIN + 100, 6], GOOD, 0.0)]
    session.ask(1, 11)
    session.work(1)
    assert [(one.text, one.start, one.end) for one in session.segments(1)] == [(" w5", 0.0, 2.0), (" w6", 2.0, 4.0)]
    assert session.runtime.encoded == [[(11, 1500)]]


def test_times_never_go_back() -> None:
    session = LoopSession(Scripted())
    session.open(1)
    session.put(chunk(1, 0, 11, seconds=1, start=5), chunk(1, 1, 12, start=2), Closed(1, 10 * 16000))
    session.work(1)
    assert [(one.start, one.end) for one in session.segments(1)] == [(5.0, 6.0), (6.0, 6.0)]


def test_expired_request_is_never_encoded_and_ends_before_the_next_step() -> None:
    session = LoopSession(Scripted(batch=4))
    now = time.monotonic()
    session.put(RequestOpened(1, "a", ENGLISH, [], now - 1), chunk(1, 0, 11))
    session.put(RequestOpened(2, "a", ENGLISH, [], now + 3600), chunk(2, 0, 12), Closed(2, 480_000))
    session.work(2)
    (refused,) = session.of(RequestRefused)
    assert (refused.request, refused.code) == (1, "TIMEOUT")
    assert Cancel(1) in session.handed, "nor is more of its sound prepared"
    assert session.runtime.decoded == [[12]]
    assert session.counters.running == session.counters.waiting == 0


def test_after_a_step_that_took_too_long_fewer_windows_are_decoded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    session = LoopSession(Scripted(batch=4))
    pace = session.loop._pace
    monkeypatch.setattr(pace, "took", lambda windows, _: type(pace).took(pace, windows, 5.0 * windows))
    for request in (1, 2, 3, 4):
        session.ask(request, 10 + request, 20 + request)
    session.work(1, 2, 3, 4)
    assert len(session.runtime.decoded[0]) == 4
    assert {len(windows) for windows in session.runtime.decoded[1:]} == {1}
    assert [session.text(request) for request in (1, 2)] == [" w11 w21", " w12 w22"]


def test_start_of_a_request_is_reported_once_and_before_its_text() -> None:
    session = LoopSession(Scripted(batch=1))
    session.ask(1, 11, 12)
    session.ask(2, 21)
    session.work(1, 2)
    phases = [phase for stepped in session.of(Stepped) for phase in stepped.phases]
    assert [(phase.request, phase.name) for phase in phases] == [(1, "windows"), (2, "windows")]
    assert phases[0].at < phases[1].at
    kinds = [type(message) for message in session.sent if not isinstance(message, Stepped) or message.phases]
    assert kinds[0] is Stepped
