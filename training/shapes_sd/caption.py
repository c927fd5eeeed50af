"""Captions of scenes in plain English, and their vocabulary.

The plain form is "[a drawing of] a [small|large] COLOUR SHAPE [position] on a COLOUR background"; training adds
other forms that people write.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy

from training.shapes_sd.scene import COLOURS, POSITIONS, SHAPES, SIZES, Scene

_PREFIXES = (
    *("a drawing of", "a picture of", "an image of", "a photo of", "a painting of", "an illustration of", "a view of"),
    *(
        "draw",
        "please draw",
        "draw me",
        "show me",
        "make",
        "create",
        "generate",
        "i want",
        "there is",
        "a simple icon of",
    ),
)
_ENDINGS = (
    "please",
    "flat",
    "simple",
    "high quality",
    "minimalist",
    "clean",
    "digital art",
    "vector",
    "nice and clean",
)
_SIZES = {"small": ("small", "small", "tiny", "little"), "large": ("large", "large", "big", "huge")}
_PLACES = {
    "in the center": ("in the center", "in the centre", "in the middle", "centered"),
    "on the left": ("on the left", "on the left side", "to the left", "at the left"),
    "on the right": ("on the right", "on the right side", "to the right", "at the right"),
    "at the top": ("at the top", "on top", "near the top", "in the upper part"),
    "at the bottom": ("at the bottom", "near the bottom", "in the lower part"),
    "in the top left corner": ("in the top left corner", "in the top left", "at the upper left", "at the top left"),
    "in the top right corner": (
        "in the top right corner",
        "in the top right",
        "at the upper right",
        "at the top right",
    ),
    "in the bottom left corner": ("in the bottom left corner", "in the bottom left", "at the lower left"),
    "in the bottom right corner": ("in the bottom right corner", "in the bottom right", "at the lower right"),
}
_BACKGROUNDS = (
    *("on a {} background", "on a {} background", "against a {} background", "with a {} background"),
    *("over a {} background", "on {}", "in front of a {} background", "on a plain {} background"),
)
_SHAPES = {
    "circle": ("circle", "circle", "disc", "dot", "ball"),
    "square": ("square", "square", "box"),
    "triangle": ("triangle",),
    "star": ("star",),
    "ring": ("ring", "ring", "hoop"),
    "cross": ("cross", "cross", "plus sign"),
}
# In the vocabulary to keep ordinary prompts short in tokens; the model learns only that they carry no meaning.
_COMMON = re.findall(
    r"\w+",
    """
the of and to a in is it you that he was for on are with as i his they be at one have this from or had by not but what
all were we when your can said there use an each which she do how their if will up other about out many then them
these so some her would make like him into time has look two more write go see number no way could people my than
first water been call who its now find long down day did get come made may part over new sound take only little work
know place year live me back give most very after thing our just name good sentence man think say great where help
through much before line right too mean old any same tell boy follow came want show also around form three small set
put end does another well large must big even such because turn here why ask went men read need land different home us
move try kind hand picture again change off play spell air away animal house point page letter mother answer found
study still learn should world cat dog bird fish horse sea otter baby cute wearing hat tree flower sun moon sky
mountain city street car boat person woman child face eye portrait landscape photo photograph realistic painting oil
watercolor style art cartoon beautiful dark light bright golden silver night forest river beach robot space astronaut
riding castle dragon fantasy
""",
)


@dataclass(frozen=True)
class Wording:
    """The variation of captions: chances of a prefix, another order, synonyms and meaningless words."""

    prefix: float = 0.25
    order: float = 0.15
    synonym: float = 0.2
    noise: float = 0.05


def plain_caption(scene: Scene) -> str:
    """Returns the caption in its plain form, without prefix; colour, shape and background must be set."""
    words = [
        scene.size,
        scene.colour,
        scene.shape,
        scene.position,
        "on",
        _with_article(f"{scene.background} background"),
    ]
    return _with_article(" ".join(word for word in words if word))


def worded_caption(scene: Scene, rng: numpy.random.Generator, wording: Wording) -> str:
    """Returns a caption that names exactly the parts that the scene specifies."""

    def one(options: tuple[str, ...]) -> str:
        return options[rng.integers(len(options))] if rng.random() < wording.synonym else options[0]

    subject = ""
    if scene.colour or scene.shape or scene.size:
        shape = one(_SHAPES[scene.shape]) if scene.shape else ("shape", "object", "thing", "")[rng.integers(4)]
        size = one(_SIZES[scene.size]) if scene.size else ""
        subject = _with_article(" ".join(filter(None, (size, _spelt(scene.colour, rng), shape))))
    place = one(_PLACES[scene.position]) if scene.position else ""
    ground = _articled(one(_BACKGROUNDS).format(_spelt(scene.background, rng))) if scene.background else ""
    parts = [subject, place, ground]
    if rng.random() < wording.order:
        parts = _reordered(subject, place, ground, rng)
    caption = " ".join(filter(None, parts))
    if caption and rng.random() < wording.prefix:
        caption = f"{_PREFIXES[rng.integers(len(_PREFIXES))]} {caption}"
    return _with_noise(caption, rng, wording.noise)


def words() -> list[str]:
    """Returns every word that has its own token, without duplicates, in a fixed order."""
    texts = [*COLOURS, "grey", *SHAPES, *SIZES, *POSITIONS, *_PREFIXES, *_ENDINGS, *_BACKGROUNDS, "shape object thing"]
    texts += [text for table in (_SIZES, _PLACES, _SHAPES) for options in table.values() for text in options]
    return list(dict.fromkeys(word for text in (*texts, *_COMMON) for word in re.findall("[a-z]+", text)))


def _reordered(subject: str, place: str, ground: str, rng: numpy.random.Generator) -> list[str]:
    comma = "," if ground and (subject or place) else ""
    tag = re.sub(r"^.*?(\w+)( background)?$", r"\1 background", ground)
    orders = (
        [subject, ground, place],
        [ground + comma, subject, place],
        [subject + comma, tag, place],
        [tag + comma, subject.removeprefix("a ").removeprefix("an "), place],
        [place, subject, ground],
    )
    return orders[rng.integers(len(orders))]


def _with_noise(caption: str, rng: numpy.random.Generator, chance: float) -> str:
    if rng.random() < chance:
        caption = f"{caption}, {_ENDINGS[rng.integers(len(_ENDINGS))]}"
    if rng.random() < chance:
        said = [*COLOURS, "grey", *SHAPES, "small", "little", "large", "big", "right"]
        strange = [word for word in _COMMON if word not in said]
        caption = " ".join([strange[rng.integers(len(strange))] for _ in range(rng.integers(1, 4))] + [caption])
    if rng.random() < chance:
        letters = "".join(chr(97 + rng.integers(26)) for _ in range(rng.integers(2, 7)))
        caption = f"{letters} {caption}" if rng.random() < 0.5 else f"{caption} {letters}"
    return caption.strip(" ,")


def _spelt(colour: str | None, rng: numpy.random.Generator) -> str:
    return "grey" if colour == "gray" and rng.random() < 0.5 else colour or ""


def _with_article(text: str) -> str:
    return f"{'an' if text[:1] in tuple('aeiou') else 'a'} {text}"


def _articled(text: str) -> str:
    return re.sub(r"\ba (?=[aeiou])", "an ", text)
