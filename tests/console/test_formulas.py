"""LaTeX in answers becomes MathML, inside the page's policy; what cannot is shown as its source with the reason."""

from __future__ import annotations

from allm.text.v1 import chat_service_pb2

from tests.case import case
from tests.console.axe import problems
from tests.console.chromium import Page
from tests.console.scripted_services import Scripted, ScriptedChat

ANSWER = "[...document.querySelectorAll('.answer > .markdown')].at(-1)"  # the last one
DEEP = r"\sqrt{" * 150 + "x" + "}" * 150
# Each source with elements that it must become (a selector) and their text.
DRAWN = [
    (r"Of $\frac{a}{b}$ it is", "math:not([display]) mfrac", "ab"),
    (r"Of \(\sqrt{x}\) it is", "math:not([display]) msqrt", "x"),
    ("Of\n\\[\n\\sum_{n=1} n\n\\]\nit is", "math[display=block] munder", "∑n=1"),
    ("$$\nE = mc^2\n$$", "math[display=block] msup", "c2"),
    ("\\begin{align*}\na &= b \\\\[2pt]\n&= c\n\\end{align*}", "mtr:last-child mtd.align-left.close-before", "=c"),
    ("```math\n\\mathbb{R}\n```", "math[display=block] mi", "\N{DOUBLE-STRUCK CAPITAL R}"),
    (r"$\mathbf{B}\mathcal{L}$", "math mi:last-child", "\N{SCRIPT CAPITAL L}"),
    (r"1. $\cancel{x}$", "li math mrow.enclosed-updiagonalstrike", "x"),
    ("| a |\n|---|\n| $a_1$ |", "td math msub", "a1"),
    (r"$$\begin{array}{|c|} a \end{array}$$", "math .enclosed-left.enclosed-right", "a"),
]
# Each source with the reason that follows it.
REFUSED = [
    (r"\(\frac{1}{\)", r"\frac{1}{", "LaTeX: Unexpected end of input"),
    (r"$\nosuch x$", r"\nosuch x", r"LaTeX: Undefined control sequence: \nosuch"),
    (r"$\def\a{\b\b}\a$", r"\def\a{\b\b}\a", r"LaTeX: \def: definitions are not supported"),
    (
        r"$\href{javascript:window.broken=1}{x}$",
        r"\href{javascript:window.broken=1}{x}",
        r"LaTeX: \href is not supported",
    ),
    (r"$\includegraphics{x.png}$", r"\includegraphics{x.png}", r"LaTeX: \includegraphics is not supported"),
    (f"${DEEP}$", DEEP, "LaTeX: More than 100 levels"),
    (f"${'x+' * 2500}x$", f"{'x+' * 2500}x", "The formula is longer than 4000 characters."),
]
PLAIN = [
    "It costs $5 and $10.",
    "`$x$` is code",
    r"\$x\$",
    "```\n$$x$$\n```",
    "x $ y $ z",
    r"\\(x\\)",
    "$x$ " * 1600,
    "$x$" + " word" * 10_000,
]


def answer(page: Page, chat: ScriptedChat, text: str) -> None:
    """Has `text` answered, and waits until its formulas are drawn."""
    chat.deltas = [chat_service_pb2.ChatDelta(text=text)]
    answers = page.evaluate("document.querySelectorAll('.answer').length")
    page.fill("textarea", "Message", "Hello")
    page.press("Enter")
    page.wait(f"[...document.querySelectorAll('.answer')][{answers}]?.querySelector('.below')")
    page.wait(f"[...{ANSWER}.querySelectorAll('.formula')].every((each) => each.querySelector('math, .problem'))")


def test_formulas_are_drawn(page: Page, scripted: Scripted) -> None:
    for source, selector, text in DRAWN:
        with case(source=source):
            answer(page, scripted.chat, source)
            assert page.evaluate(f"{ANSWER}.querySelector({selector!r})?.textContent") == text
    assert page.evaluate("document.querySelectorAll('[style]').length") == 0


def test_what_is_refused_is_shown_as_its_source(page: Page, scripted: Scripted) -> None:
    for source, shown, reason in REFUSED:
        with case(source=source[:50]):
            answer(page, scripted.chat, source)
            assert page.evaluate(f"{ANSWER}.querySelector('.formula code').textContent") == shown
            assert page.evaluate(f"{ANSWER}.querySelector('.formula .problem').textContent").startswith(reason)
            assert page.evaluate(f"{ANSWER}.querySelectorAll('a, img, math').length") == 0


def test_prices_code_and_what_is_too_large_stay_text(page: Page, scripted: Scripted) -> None:
    for text in PLAIN:
        with case(text=text[:50]):
            answer(page, scripted.chat, text)
            assert page.evaluate(f"{ANSWER}.querySelectorAll('.formula').length") == 0


def test_a_formula_that_is_being_written_is_its_source(page: Page, scripted: Scripted) -> None:
    """And one that never ends is text."""
    page.evaluate(
        """
        window.seen = 0;
        new MutationObserver(() => { window.seen += document.querySelectorAll(".answer em").length; })
          .observe(document.body, { childList: true, subtree: true });
        """
    )
    scripted.chat.deltas = [chat_service_pb2.ChatDelta(text=part) for part in ("So\n\n\\[ a_1", " * b_2", " * c_3 ")]
    page.fill("textarea", "Message", "Hello")
    page.press("Enter")
    page.wait("document.querySelector('.answer .below')")
    assert page.evaluate(f"{ANSWER}.querySelectorAll('.formula').length") == 0
    assert "a_1 * b_2 * c_3" in page.evaluate(f"{ANSWER}.innerText")
    assert page.evaluate("window.seen") == 0


def test_a_wide_formula_scrolls_by_keyboard(page: Page, scripted: Scripted) -> None:
    for width in (390, 1440):
        for scheme in ("light", "dark"):
            with case(width=width, scheme=scheme):
                page.resize(width, 900)
                page.colours(scheme)
                answer(page, scripted.chat, f"Inline $x = {'a + ' * 60}b$, and\n\n$$y = {'a + ' * 60}b$$\n\n$\\nosuch$")
                assert page.evaluate(f"{ANSWER}.querySelectorAll('.formula > .scroll[tabindex]').length") == 2
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
                assert problems(page) == []
