"""Questions about pictures and their answers, in the words that people use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy

from training.shapes_sd.scene import COLOURS, POSITIONS, SHAPES
from training.shapes_vlm.scene import Seen, Thing

NUMBERS = ("no", "one", "two", "three")
_WHOLE = (
    "What is in this picture?",
    "What is in the image?",
    "What's in this image?",
    "What do you see?",
    "What can you see in this picture?",
    "What does the picture show?",
    "What is shown here?",
    "What is this?",
    "Describe the picture.",
    "Describe this image.",
    "Describe the image in one sentence.",
    "Please describe this picture.",
    "Tell me about this image.",
    "Can you tell me what is in the picture?",
    "Write a caption for this image.",
    "Caption this picture.",
)
_COLOUR = (
    "What color is the {}?",
    "What colour is the {}?",
    "What is the color of the {}?",
    "Which color does the {} have?",
    "Which colour is the {}?",
    "What color is the {} in this picture?",
    "Tell me the color of the {}.",
    "The {} has which color?",
)
_SHAPE = (
    "What shape is it?",
    "Which shape is it?",
    "What shape is this?",
    "What shape is in the picture?",
    "Which shape do you see?",
    "What is the shape?",
    "What shape is shown in this image?",
    "Which shape is in the image?",
    "Name the shape.",
    "What kind of shape is this?",
)
_SHAPE_OF_COLOUR = (
    "What shape is {}?",
    "Which shape is {}?",
    "What is the {} shape?",
    "What is the shape of the {} object?",
    "What {} thing do you see?",
)
_BOTH = (
    "What color and shape is it?",
    "Which color and shape do you see?",
    "What shape is in the picture and which color does it have?",
    "What shape is it, and what color?",
    "Which shape is shown, in which color?",
    "Name the color and the shape.",
    "What are the color and the shape of the object?",
    "Which shape is this, and what is its color?",
)
_BACKGROUND = (
    "What color is the background?",
    "What colour is the background?",
    "Which color does the background have?",
    "What is the background color?",
    "What is behind the {}?",
)
_WHERE = (
    "Where is the {}?",
    "Where is the {} in the picture?",
    "In which part of the image is the {}?",
    "What is the position of the {}?",
    "Where do you see the {}?",
)
_COUNT = (
    "How many shapes are there?",
    "How many shapes are in the picture?",
    "How many shapes do you see?",
    "How many objects are in this image?",
    "Count the shapes.",
    "What is the number of shapes?",
)
_SIZE = ("How large is the {}?", "How big is the {}?", "What size is the {}?", "Is the {} small or large?")
_IS_THERE = (
    "Is there {} in the picture?",
    "Is there {}?",
    "Do you see {}?",
    "Can you see {} in the image?",
    "Does the picture show {}?",
    "Does this image have {}?",
)
_IS_COLOUR = ("Is the {} {}?", "Is the color of the {} {}?", "Does the {} look {}?")
# A question may ask for a single word: then the answer's last word but the point is all of it.
_BRIEFLY = (" Answer with one word.", " One word.", " Answer in one word.", " Reply with a single word.")


@dataclass(frozen=True)
class Exchange:
    """A question and its answer."""

    question: str
    answer: str


def exchange(seen: Seen, rng: numpy.random.Generator) -> Exchange:
    """Returns a random question about a picture."""
    kinds = _KINDS if len(seen.things) == 1 else _KINDS_OF_SEVERAL
    made = kinds[rng.integers(len(kinds))](seen, rng)
    if rng.random() < 0.15:
        made = Exchange(made.question.lower().rstrip("?."), made.answer)
    return made


def whole(seen: Seen) -> str:
    """Returns the answer that names everything: "A large red circle on the left on a blue background."."""
    named = [_article(_full(thing)) for thing in seen.things]
    listed = named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"
    return f"{listed[0].upper()}{listed[1:]} on {_article(seen.background)} background."


def _full(thing: Thing) -> str:
    size = "" if thing.size == "medium" else f"{thing.size} "
    return f"{size}{thing.colour} {thing.shape} {thing.position}"


def _article(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _pick(options: tuple[str, ...], rng: numpy.random.Generator) -> str:
    return options[rng.integers(len(options))]


def _thing(seen: Seen, rng: numpy.random.Generator) -> Thing:
    return seen.things[rng.integers(len(seen.things))]


def _briefly(question: str, answer: str, rng: numpy.random.Generator) -> Exchange:
    if rng.random() < 0.15:
        word = answer.rstrip(".").split()[-1]
        return Exchange(question + _pick(_BRIEFLY, rng), f"{word.capitalize()}.")
    return Exchange(question, answer)


def _named(thing: Thing, seen: Seen, rng: numpy.random.Generator, *, colour: bool) -> str:
    """Returns a name that fits one shape only; without its colour, unless two shapes are alike."""
    twins = sum(other.shape == thing.shape for other in seen.things) > 1
    if len(seen.things) == 1 and not colour and rng.random() < 0.35:
        return _pick(("shape", "object", "figure", "thing"), rng)
    return f"{thing.colour} {thing.shape}" if colour or twins else thing.shape


def _ask_whole(seen: Seen, rng: numpy.random.Generator) -> Exchange:
    return Exchange(_pick(_WHOLE, rng), whole(seen))


def _ask_colour(seen: Seen, rng: numpy.random.Generator) -> Exchange:
    alone = [one for one in seen.things if sum(other.shape == one.shape for other in seen.things) == 1]
    if not alone:
        return _ask_background(seen, rng)
    thing = alone[rng.integers(len(alone))]
    name = _named(thing, seen, rng, colour=False)
    return _briefly(_pick(_COLOUR, rng).format(name), f"The {thing.shape} is {thing.colour}.", rng)


def _ask_shape(seen: Seen, rng: numpy.random.Generator) -> Exchange:
    thing = seen.things[0]
    return _briefly(_pick(_SHAPE, rng), f"It is {_article(thing.shape)}.", rng)


def _ask_shape_of_colour(seen: Seen, rng: numpy.random.Generator) -> Exchange:
    alone = [one for one in seen.things if sum(other.colour == one.colour for other in seen.things) == 1]
    if not alone:
        return _ask_count(seen, rng)
    thing = alone[rng.integers(len(alone))]
    answer = f"The {thing.colour} shape is {_article(thing.shape)}."
    return _briefly(_pick(_SHAPE_OF_COLOUR, rng).format(thing.colour), answer, rng)


def _ask_both(seen: Seen, rng: numpy.random.Generator) -> Exchange:
    return Exchange(_pick(_BOTH, rng), f"It is {_article(seen.things[0].colour)} {seen.things[0].shape}.")


def _ask_background(seen: Seen, rng: numpy.random.Generator) -> Exchange:
    question = _pick(_BACKGROUND, rng).format("shape" if len(seen.things) == 1 else "shapes")
    if "behind" in question:
        return Exchange(question, f"{_article(seen.background).capitalize()} background.")
    return _briefly(question, f"The background is {seen.background}.", rng)


def _ask_where(seen: Seen, rng: numpy.random.Generator) -> Exchange:
    thing = _thing(seen, rng)
    return Exchange(
        _pick(_WHERE, rng).format(_named(thing, seen, rng, colour=rng.random() < 0.4)),
        f"The {thing.shape} is {thing.position}.",
    )


def _ask_count(seen: Seen, rng: numpy.random.Generator) -> Exchange:
    number = len(seen.things)
    question = _pick(_COUNT, rng)
    if rng.random() < 0.15:
        return Exchange(question + _pick(_BRIEFLY, rng), f"{NUMBERS[number].capitalize()}.")
    if rng.random() < 0.25:
        shape = _thing(seen, rng).shape if rng.random() < 0.7 else _pick(SHAPES, rng)
        number = sum(thing.shape == shape for thing in seen.things)
        question, noun = f"How many {_plural(shape)} are there?", shape
    else:
        noun = "shape"
    if number == 1:
        return Exchange(question, f"There is one {noun}.")
    return Exchange(question, f"There are {NUMBERS[number]} {_plural(noun)}.")


def _plural(noun: str) -> str:
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def _ask_size(seen: Seen, rng: numpy.random.Generator) -> Exchange:
    thing = _thing(seen, rng)
    name = _named(thing, seen, rng, colour=False)
    return _briefly(_pick(_SIZE, rng).format(name), f"The {thing.shape} is {thing.size}.", rng)


def _ask_is_there(seen: Seen, rng: numpy.random.Generator) -> Exchange:
    """Asks for a shape, with or without its colour: half of the time one that is there."""
    thing = _thing(seen, rng)
    colour, shape = thing.colour, thing.shape
    there = rng.random() < 0.5
    if not there:
        while any((other.colour, other.shape) == (colour, shape) for other in seen.things):
            if rng.random() < 0.6:
                shape = _pick(SHAPES, rng)
            if rng.random() < 0.6:
                colour = _pick(tuple(COLOURS), rng)
    if rng.random() < 0.3:
        there, name = any(other.shape == shape for other in seen.things), shape
    else:
        name = f"{colour} {shape}"
    if there:
        return Exchange(_pick(_IS_THERE, rng).format(_article(name)), f"Yes, there is {_article(name)}.")
    instead = " and ".join(_article(f"{other.colour} {other.shape}") for other in seen.things)
    verb = "is" if len(seen.things) == 1 else "are"
    return Exchange(_pick(_IS_THERE, rng).format(_article(name)), f"No, there {verb} {instead}.")


def _ask_is_colour(seen: Seen, rng: numpy.random.Generator) -> Exchange:
    thing = seen.things[0]
    colour = thing.colour if rng.random() < 0.5 else _pick(tuple(COLOURS), rng)
    question = _pick(_IS_COLOUR, rng).format(_named(thing, seen, rng, colour=False), colour)
    return Exchange(question, f"{'Yes' if colour == thing.colour else 'No'}, the {thing.shape} is {thing.colour}.")


def _ask_at(seen: Seen, rng: numpy.random.Generator) -> Exchange:
    """Asks for the shape at a place that only one shape has."""
    alone = [one for one in seen.things if sum(_side(other) == _side(one) for other in seen.things) == 1]
    if not alone:
        return _ask_whole(seen, rng)
    thing = alone[rng.integers(len(alone))]
    place = thing.position
    question = _pick(("What is {}?", "Which shape is {}?", "What do you see {}?", "Which object is {}?"), rng)
    return Exchange(question.format(place), f"{_article(f'{thing.colour} {thing.shape}').capitalize()}.")


def _side(thing: Thing) -> tuple[float, float]:
    return POSITIONS[thing.position]


Ask = Callable[[Seen, numpy.random.Generator], Exchange]
_KINDS: tuple[Ask, ...] = (
    *(_ask_whole, _ask_whole, _ask_whole, _ask_colour, _ask_colour, _ask_shape, _ask_shape, _ask_both, _ask_both),
    *(_ask_background, _ask_where, _ask_count, _ask_size, _ask_is_there, _ask_is_there, _ask_is_colour),
    _ask_shape_of_colour,
)
_KINDS_OF_SEVERAL: tuple[Ask, ...] = (
    *(_ask_whole, _ask_whole, _ask_colour, _ask_shape_of_colour, _ask_background, _ask_where, _ask_count, _ask_count),
    *(_ask_is_there, _ask_at),
)
KINDS: dict[str, Ask] = {
    "description": _ask_whole,
    "colour": _ask_colour,
    "shape": _ask_shape,
    "colour and shape": _ask_both,
    "background": _ask_background,
    "place": _ask_where,
    "count": _ask_count,
    "size": _ask_size,
    "presence": _ask_is_there,
}
