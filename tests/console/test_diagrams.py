"""Diagrams in answers become pictures, inside the page's policy; what cannot is shown as its source with the reason."""

from __future__ import annotations

from allm.text.v1 import chat_service_pb2

from tests.case import case
from tests.console.axe import problems
from tests.console.chromium import Browser, Page
from tests.console.scripted_services import Scripted, ScriptedChat

ANSWER = "[...document.querySelectorAll('.answer > .markdown')].at(-1)"  # the last one
FLOW = 'flowchart LR\n A["Read <b>it</b>"] -->|yes & no| B{Is it?}\n subgraph All\n B --> C(End)\n end\n'
# Each diagram with words that it shows.
DRAWN = {
    FLOW: "Is it?",
    "sequenceDiagram\n Alice->>John: Hello\n loop Daily\n John-->>Alice: Great!\n end\n": "Great!",
    "classDiagram\n Animal <|-- Duck\n class Duck{\n +swim()\n }\n": "+swim()",
    "stateDiagram-v2\n [*] --> Still\n Still --> [*]: stop\n": "stop",
    "erDiagram\n CUSTOMER ||--o{ ORDER : places\n CUSTOMER {\n string name\n }\n": "places",
    "gantt\n title Plan\n dateFormat YYYY-MM-DD\n section One\n Task A :a1, 2026-01-01, 30d\n": "Task A",
    'pie title Pets\n "Dogs" : 3\n "Cats" : 1\n': "25%",
    "gitGraph\n commit\n branch work\n commit\n checkout main\n merge work\n": "work",
    "timeline\n title History\n 2002 : First\n 2004 : Second : Third\n": "Third",
    "quadrantChart\n x-axis Low --> High\n A: [0.3, 0.6]\n": "High",
    "xychart-beta\n x-axis [jan, feb]\n bar [5, 6]\n": "feb",
    "journey\n title My day\n section Go\n Make tea: 5: Me\n": "Make tea",
}
# Each source with the reason that follows it.
REFUSED = {
    "flowchart TD\n A[Start --> B\n": "Mermaid: Parse error on line 3:",
    "mindmap\n root\n  one\n": "Mermaid: Diagrams of this kind are not supported",
    "nosuch\n a\n": "Mermaid: No diagram type detected",
    "flowchart TD\n" + " A --> B\n" * 250: "The diagram has more than 200 lines.",
    "flowchart TD\n A[" + "x" * 10_000 + "]\n": "The diagram is longer than 10000 characters.",
    "flowchart TD\n" + " A & B & C & D & E & F --> G & H & I & J & K & L\n" * 10: "Mermaid: Edge limit exceeded.",
}
HOSTILE = (
    '%%{init: {"securityLevel": "loose", "htmlLabels": true,'
    ' "themeCSS": "* { background: url(https://elsewhere.example) }"}}%%\n'
    'flowchart TD\n A["<img src=https://elsewhere.example/p.png onerror=window.broken=1>"] --> B\n'
    ' click A href "javascript:window.broken=1"\n click B call broken()\n'
)


def answer(page: Page, chat: ScriptedChat, *deltas: str) -> None:
    """Has this text answered, and waits until its diagrams are drawn."""
    chat.deltas = [chat_service_pb2.ChatDelta(text=delta) for delta in deltas]
    answers = page.evaluate("document.querySelectorAll('.answer').length")
    page.fill("textarea", "Message", "Hello")
    page.press("Enter")
    page.wait(f"[...document.querySelectorAll('.answer')][{answers}]?.querySelector('.below')")
    drawn = "each.querySelector('.problem') ?? each.querySelector('img')?.naturalWidth"
    page.wait(f"[...{ANSWER}.querySelectorAll('.diagram')].every((each) => {drawn})")


def fence(source: str) -> str:
    return f"```mermaid\n{source}```\n\n"


def test_diagrams_are_drawn(page: Page, scripted: Scripted) -> None:
    answer(page, scripted.chat, "".join(map(fence, DRAWN)))
    for number, (source, words) in enumerate(DRAWN.items()):
        with case(source=source):
            found = f"{ANSWER}.querySelectorAll('.diagram')[{number}]"
            assert words in page.evaluate(f"{found}.querySelector('img')?.alt ?? {found}.innerText")
    assert "yes & no, Read <b> it </b>" in page.evaluate(f"{ANSWER}.querySelector('img').alt")


def test_its_source_can_be_seen_by_keyboard(page: Page, scripted: Scripted) -> None:
    answer(page, scripted.chat, fence(FLOW))
    page.evaluate(f"[...{ANSWER}.querySelectorAll('button')].find((each) => each.innerText === 'Show source').focus()")
    page.press("Enter")
    page.wait(f"{ANSWER}.querySelector('pre')?.textContent === {FLOW.strip()!r}")
    page.wait("document.activeElement.innerText === 'Show diagram'")
    page.press("Enter")
    page.wait(f"{ANSWER}.querySelector('img')")


def test_what_is_refused_is_shown_as_its_source(page: Page, scripted: Scripted) -> None:
    answer(page, scripted.chat, "".join(map(fence, REFUSED)))
    for number, (source, reason) in enumerate(REFUSED.items()):
        with case(source=source[:50]):
            found = f"{ANSWER}.querySelectorAll('.diagram')[{number}]"
            assert page.evaluate(f"{found}.querySelector('code').textContent") == source.rstrip("\n")
            assert page.evaluate(f"{found}.querySelector('.problem').textContent").startswith(reason)


def test_a_diagram_runs_and_loads_nothing(page: Page, scripted: Scripted) -> None:
    answer(page, scripted.chat, fence(HOSTILE))
    page.click(".diagram img")
    assert page.evaluate("window.broken ?? null") is None
    assert page.evaluate(f"{ANSWER}.querySelectorAll('svg, a, style').length") == 0
    assert [url for url in page.requested() if "://elsewhere" in url] == []


def test_a_diagram_is_drawn_when_its_fence_ends(page: Page, scripted: Scripted) -> None:
    """And stays the same picture while the rest of the answer arrives."""
    page.evaluate(
        """
        window.seen = new Set();
        new MutationObserver(() => { for (const each of document.querySelectorAll(".diagram")) window.seen.add(each); })
          .observe(document.body, { childList: true, subtree: true });
        """
    )
    answer(page, scripted.chat, *fence(FLOW), *(f"word {number} " for number in range(50)))
    assert page.evaluate("[...window.seen].filter((each) => each.querySelector('img')).length") == 1
    assert page.evaluate("[...window.seen].some((each) => each.querySelector('.problem'))") is False
    answer(page, scripted.chat, "```mermaid\nflowchart TD\n A --> ")
    assert page.evaluate(f"{ANSWER}.querySelectorAll('.diagram').length") == 0


def test_without_what_draws_it_the_source_stays(browser: Browser, scripted: Scripted) -> None:
    """As after an upgrade, when the page asks for files that the server no longer has."""
    page = browser.open(f"http://127.0.0.1:{scripted.port}/#/chat")
    page.wait_text("Connected")
    page.call("Network.setBlockedURLs", urls=["*/assets/mathml-*", "*/assets/diagrams-*"])
    answer(page, scripted.chat, f"It is $x$.\n\n{fence(FLOW)}")
    page.wait_text("The formula cannot be drawn. Reload the page.")
    page.wait_text("The diagram cannot be drawn. Reload the page.")
    assert page.evaluate(f"[...{ANSWER}.querySelectorAll('code')].map((each) => each.innerText)") == ["x", FLOW.strip()]
    page.close()


def test_on_every_screen(page: Page, scripted: Scripted) -> None:
    wide = "flowchart LR\n" + "".join(f" A{number}[A step on the way] --> A{number + 1}\n" for number in range(20))
    picture = ""
    for width in (390, 1440):
        page.resize(width, 900)
        for scheme in ("light", "dark"):
            with case(width=width, scheme=scheme):
                page.colours(scheme)
                answer(page, scripted.chat, fence(wide), fence(FLOW), fence("nosuch\n"))
                other, found = picture, f"{ANSWER}.querySelectorAll('img')[1]?.src"
                page.wait(f"({found} ?? {other!r}) !== {other!r}")  # a light and a dark one
                picture = page.evaluate(found)
                assert page.evaluate(f"{ANSWER}.querySelector('.diagram .scroll').tabIndex") == 0
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
                assert problems(page) == []
