"""Names of people, things, places and functions from an open set.

A name that the model has seen a thousand times can be guessed. These are drawn from hundreds of thousands of made-up
words and a few hundred real ones, each spelled by several tokens, so that the only way to be right is to copy.
"""

from collections.abc import Callable
from random import Random

from voidpad.builtin.problems import one_of


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PEOPLE = _words(
    "Ada Alice Amir Ana Anders Ann Anton Ariel Asha Ben Bianca Bo Boris Carla Carlos Chen Clara Daniel "
    "Dara Dina Elena Elias Ella Emil Emma Erik Eva Farah Felix Fiona Frida Gabriel Gita Greta Hana Hans "
    "Hassan Helen Hugo Ida Igor Ines Irene Isak Ivan Jack Jana Jin Jonas Jose Julia Kai Karim Kate "
    "Kenji Lara Laura Lena Leo Lily Lin Lucas Luna Maria Marco Marta Max Maya Mei Mia Mila Milan Mina "
    "Mona Nadia Nils Nina Noah Nora Olga Oliver Omar Oscar Otto Paul Petra Priya Rania Rosa Ruth Sam "
    "Sara Sofia Sven Tara Theo Tim Tom Uma Vera Victor Viola Wei Yan Yara Yusuf Zoe"
)
THINGS = _words(
    "apples bags balls bananas baskets beads bells bikes birds books bottles bowls boxes bricks brushes "
    "buckets buttons cakes cameras candles cans caps cards carrots cars chairs chips clocks coats coins "
    "combs cookies corks cups dolls drums ducks eggs envelopes figs fish flags flowers forks frames "
    "gems glasses gloves grapes guitars hammers hats hooks jars jewels keys kites knives labels lamps "
    "leaves lemons letters lights maps marbles masks medals melons mirrors mugs nails notes nuts olives "
    "onions oranges paints papers peaches pears pebbles pencils pens phones photos pillows pins pipes "
    "plants plates plums pots potatoes puzzles radios ribbons rings robots rocks ropes rugs rulers "
    "scarves screws seeds shells shirts shoes socks spoons stamps stars sticks stones strings sweets "
    "tables tapes tickets tiles tomatoes tools towels toys trees tubes vases watches wheels whistles "
    "wires"
)
PLACES = _words(
    "Accra Athens Austin Bergen Berlin Bern Boston Cairo Dakar Delhi Denver Dublin Geneva Ghent Hanoi "
    "Havana Helsinki Kyoto Lagos Lima Lisbon London Lyon Madrid Malmo Milan Nairobi Oslo Paris Porto "
    "Prague Quito Riga Rome Seoul Sofia Tokyo Tunis Turin Utrecht Vienna Warsaw York Zurich"
)
VERBS = _words(
    "adjust apply area balance bonus build change charge compute convert cost count depth fee gain "
    "grade growth height join level limit load mark mass merge mix move order pay power price profit "
    "range rank rate result scale score shift size solve speed sum tax total track trim update value "
    "volume wage weight width work"
)

CONSONANTS = _words("b d f g h j k l m n p r s t v w z")
ONSETS = (*CONSONANTS, *_words("br dr gr kl st tr sh th"), "")
VOWELS = ("a", "e", "i", "o", "u", "a", "e", "i", "o", "ai", "ea", "oo")
CODAS = ("", "", "", "", "", "", "n", "r", "l", "s", "m", "k", "t", "x")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def made_up(rng: Random) -> str:
    """A word of two or three syllables; one in twelve is a string of any letters."""
    if rng.random() < 0.08:
        return "".join([one_of(rng, LETTERS) for _ in range(3 + int(rng.random() * 4))])
    syllables = 2 + (rng.random() < 0.12)
    word = "".join([one_of(rng, part) for _ in range(syllables) for part in (ONSETS, VOWELS, CODAS)])
    return word if len(word) > 2 else word + one_of(rng, CONSONANTS) + one_of(rng, VOWELS)


def person(rng: Random) -> str:
    return one_of(rng, PEOPLE) if rng.random() < 0.4 else made_up(rng).capitalize()


def thing(rng: Random) -> str:
    """Things in the plural."""
    return one_of(rng, THINGS) if rng.random() < 0.4 else made_up(rng) + "s"


def place(rng: Random) -> str:
    return one_of(rng, PLACES) if rng.random() < 0.4 else made_up(rng).capitalize()


def function(rng: Random) -> str:
    """The name of a function: lower case, never a word that Python or the tasks' programs use."""
    while True:
        name = one_of(rng, VERBS) if rng.random() < 0.3 else made_up(rng)
        if name not in RESERVED:
            return name


RESERVED = frozenset(
    _words(
        "and as assert def del elif else except for from if import in is lambda len list max min not or "
        "pass range return sum try while with yield int str set map any all abs"
    )
)


def different(rng: Random, draw: Callable[[Random], str], count: int) -> list[str]:
    """So many different words, none of which begins another, so that an answer is about one of them."""
    found: list[str] = []
    while len(found) < count:
        word = draw(rng)
        if all(not word.startswith(other) and not other.startswith(word) for other in found):
            found.append(word)
    return found
