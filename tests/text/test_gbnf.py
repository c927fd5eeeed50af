"""GBNF grammars in Lark allow the texts that llama.cpp's own engine allows; faults are named with their line."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import llama_cpp
import pytest

from services.text.gbnf import MAX_NESTING, GbnfError, lark_of
from tests.byte_tokens import accepts
from tests.case import case
from tests.demo_model import demo_model

JSON = r"""
# a comment
root   ::= object
value  ::= object | array | string | ("true" | "false" | "null") ws
object ::= "{" ws (
             string ":" ws value
             ("," ws string ":" ws value)*
           )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""
GRAMMARS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (JSON, ("{}", '{"a": ["x", true]}', '{"\\u00e9\\n":"é"}', '{"a": }', "[]", '{"a": "b"', '{"a":"\t"}', "{}\n  ")),
    ('root ::= "abc" | [a-z]+', ("abc", "abd", "ab", "", "abcd", "a1")),  # a lexer would cut "abd" after "ab"
    ('root ::= [a-z]* "x" [a-z]', ("xx", "axya", "xxxx", "aya", "xa")),
    ("root ::= item{2,3} tail?\nitem ::= [0-9]\ntail ::= [^0-9]", ("12", "1", "123", "1234", "12a", "123é", "12ab")),
    ('root ::= ("a" | "b"){2} .', ("abc", "bb\n", "ab", "abcc", "cab")),
    ('root ::= my-rule my-rule2\nmy-rule ::= "a"{2,}\nmy-rule2 ::= [\\]\\[^-]', ("aa]", "aaa^", "aa-", "a]", "aab")),
    ('root ::= "\\x41\\u00e9\\U0001F642\\t\\"\\\\"', ('Aé🙂\t"\\', 'Aé🙂\t"')),
    ('root ::= "(" root ")" | ""', ("", "()", "(())", "(()", ")")),
    ('root ::= [あ-ん]+ ("。" | "!")', ("あい。", "い!", "a。", "あ")),
    ('root ::= ""', ("", "a")),
    ('root ::= "a"{0,2} # comment\n\n# another\n', ("", "aa", "aaa")),
)
FAULTS = (
    ('root = "a"', "line 1: '::=' is expected"),
    ('root ::= "a"\n\nx ::= "a', "line 3: a string has no closing quote"),
    ("root ::= b", "there is no rule 'b'"),
    ('x ::= "a"', "there is no rule 'root'"),
    ('root ::= "a"\nroot ::= "b"', "line 2: the rule 'root' appears twice"),
    ("root ::= [a", "line 1: a set of characters has no ']'"),
    ("root ::= []", "line 1: a set of characters is empty"),
    ("root ::= [b-a]", "line 1: a range of characters is empty"),
    ('root ::= "a"{3,1}', "line 1: the first number of a count is larger than the second"),
    ('root ::= "a"{', "line 1: '{' is expected to begin a count like {2}, {2,} or {2,5}"),
    ("root ::= <think>", "line 1: tokens by name or number are not supported"),
    ("root ::= " + "(" * (MAX_NESTING + 1), f"line 1: groups are nested deeper than {MAX_NESTING}"),
    ('root ::= "\\q"', "line 1: unknown escape sequence"),
    ('root ::= "\\ud800"', "line 1: an escape sequence is not a valid character"),
    ('root ::= "a" )', "line 1: the end of the line is expected"),
    ('root ::= ("a"', "line 1: ')' is expected"),
    ("::=", "line 1: a rule's name is expected"),
)


@pytest.fixture(scope="module")
def reference() -> Iterator[Callable[[str, str], bool]]:
    """Yields llama.cpp's own judgement of a grammar and a text."""
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(demo_model()).encode(), params)
    vocab = llama_cpp.llama_model_get_vocab(model)

    def allows(sampler: object, token: int) -> bool:
        data = (llama_cpp.llama_token_data * 1)(llama_cpp.llama_token_data(token, 1.0, 0.0))
        found = llama_cpp.llama_token_data_array(data, 1, -1, False)
        llama_cpp.llama_sampler_apply(sampler, ctypes.byref(found))
        return data[0].logit > float("-inf")

    def judge(grammar: str, text: str) -> bool:
        sampler = llama_cpp.llama_sampler_init_grammar(vocab, grammar.encode(), b"root")
        assert sampler
        tokens = (llama_cpp.llama_token * 256)()
        data = text.encode()
        count = llama_cpp.llama_tokenize(vocab, data, len(data), tokens, 256, False, False)
        try:
            for token in tokens[:count]:
                if not allows(sampler, token):
                    return False
                llama_cpp.llama_sampler_accept(sampler, token)
            return allows(sampler, llama_cpp.llama_vocab_eos(vocab))
        finally:
            llama_cpp.llama_sampler_free(sampler)

    yield judge
    llama_cpp.llama_model_free(model)


def test_the_translation_allows_what_llama_cpp_allows(reference: Callable[[str, str], bool]) -> None:
    for grammar, texts in GRAMMARS:
        lark = lark_of(grammar)
        judged = set()
        for text in texts:
            with case(grammar=grammar, text=text):
                expected = reference(grammar, text)
                judged.add(expected)
                assert accepts(lark, text) == expected
        assert judged == {True, False}, grammar


def test_a_fault_is_named_with_its_line() -> None:
    for grammar, message in FAULTS:
        with case(grammar=grammar):
            with pytest.raises(GbnfError) as caught:
                lark_of(grammar)
            assert str(caught.value) == message
