"""Small talk: greetings, questions about the model, thanks, and questions that it cannot answer.

Replies are short and honest: what the model is, what it can do, and one example to try. Judged by template. It is in
the training data of the built-in models, and no benchmark.
"""

import re
from random import Random

from voidpad.builtin.problems import Problem, Task, between, one_of, weighted
from voidpad.builtin.tasks import EVERY
from voidpad.builtin.words import made_up, person, place, thing

GREETINGS = (
    "hello", "hi", "hey", "hello there", "hi there", "hey there", "good morning", "good evening",
    "good afternoon", "good day", "greetings", "hello again", "hi again", "howdy", "hello, how are you",
    "hi, how are you", "how are you", "how do you do", "how is it going", "what is up", "hallo", "bonjour",
    "hola", "ciao", "hello world", "hello model", "hello computer", "test", "testing", "ping", "yo",
    "hi {w}", "hello {w}", "hey {w}", "hello, I am {w}", "hi, my name is {w}", "nice to meet you",
    "is anybody there", "are you there", "anyone here",
)  # fmt: skip
WHO = (
    "who are you", "what are you", "what is your name", "are you a person", "are you a robot",
    "are you an AI", "are you a language model", "are you human", "which model are you",
    "what model is this", "who made you", "how big are you", "how many parameters do you have",
    "tell me about yourself", "introduce yourself", "what is this", "how do you work", "are you real",
    "do you have a name", "what is voidpad", "how were you trained",
)  # fmt: skip
WHAT = (
    "what can you do", "what can I ask", "what can I ask you", "help", "help me", "please help",
    "can you help me", "how can you help me", "what do you know", "what are you good at",
    "what should I ask", "give me an example", "show me what you can do", "what tasks can you do",
    "what else can you do", "how do I use this", "give me a task", "show me an example", "what are you for",
    "what is this for", "what now", "examples", "commands", "menu",
)  # fmt: skip
THANKS = (
    "thanks", "thank you", "thank you very much", "many thanks", "thanks a lot", "great, thanks",
    "ok, thanks", "ok", "great", "good", "good job", "well done", "nice", "very good", "cool", "perfect",
    "wow", "that is right", "yes", "no", "bye", "goodbye", "good bye", "see you", "see you later",
    "good night", "thanks, bye", "I like you", "you are great",
)  # fmt: skip
UNKNOWN = (
    "what is the capital of {w}", "who is {w}", "what is {w}", "where is {w}", "when was {w} born",
    "tell me a joke", "tell me a story", "tell me about {w}", "write a poem", "write a poem about {w}",
    "why is the sky blue", "what time is it", "what is the weather", "what is the weather in {w}",
    "who won the game", "how old is {w}", "what is the meaning of life", "sing a song",
    "what do you think about {w}", "translate {w} to {w}", "how far is {w} from {w}", "who wrote {w}",
    "what does {w} mean", "explain {w}", "explain {w} to me", "summarize this text",
    "write an email to {w}", "write a letter to {w}", "what should I eat", "I am sad", "I am bored",
    "do you love me", "can you dream", "do you like {w}", "is {w} better than {w}", "why", "why not", "how",
    "what", "who", "where is the nearest {w}", "how do I cook {w}", "how do I get to {w}",
    "book a flight to {w}", "play some music", "open the door", "what is the price of {w}",
    "who is the king of {w}", "how many people live in {w}", "what is the best {w}", "give me advice",
    "what day is it", "what year is it", "can you see me", "draw a {w}", "{w}", "{w} {w}", "{w} {w} {w}",
    "I like {w}", "{w} is {w}", "my {w} is {w}", "please {w} the {w}", "what happened in {w}",
    "name a famous {w}", "is {w} true", "does {w} exist", "I have a question about {w}",
    "how do I learn {w}", "what is love", "who is the president", "how tall is {w}",
    "what is your favorite {w}", "where do you live", "where were you born", "solve world peace",
    "write a song about {w}", "make me a {w}",
)  # fmt: skip
QUESTIONS = {"greeting": GREETINGS, "who": WHO, "what": WHAT, "thanks": THANKS, "unknown": UNKNOWN}
SHARES = (0.26, 0.14, 0.16, 0.12, 0.32)  # of the kinds of questions

LEADS = {
    "greeting": ("Hello!", "Hi!", "Hello, nice to meet you.", "Hi there!", "Hello! I am a tiny model."),
    "who": (
        "I am a tiny model of voidpad.", "I am a very small language model.",
        "I am a small diffusion model, made to show how voidpad works.",
        "I am the built-in model of voidpad.",
    ),
    "what": (
        "I can do a few things.", "Here is what I can do.", "I know a few tasks.",
        "Not much, but some things.",
    ),
    "thanks": ("You are welcome.", "Glad to help.", "You are welcome!", "Good to hear."),
    "unknown": (
        "I do not know that.", "I cannot answer that.", "That is more than I know.",
        "I am too small to know that.", "Sorry, I cannot do that.",
    ),
}  # fmt: skip
ABILITIES = (
    "I can count, write small functions and write JSON.",
    "I can solve word problems, write short programs and write JSON.",
    "I can do small sums, list numbers and fill gaps.",
    "I can work with numbers, small programs, lists and JSON.",
    "I can count things step by step, and write a note as JSON.",
)
EXAMPLES = (
    "Try: Tom has 12 pens. (1) Tom buys 5. How many pens after (1)?",
    "Try: List all numbers from 10 to 40 that are multiples of 7.",
    "Try: a = 12 + 5; b = a * 3; What is b?",
    "Try: Write a function add(x) for a list x. (1) add 3 to each item Return the sum after (1).",
    "Try: Start with 24. Even: take half. Odd: plus 5. Go on until the value is below 5.",
    'Try: Write the note as JSON. Note: Ann is 34 years old. Schema: {"name": string, "age": integer}',
)
ENDS = ("", "", ".", "!", "?", "?", "...", " :)", "!!")


def _word(rng: Random) -> str:
    return one_of(rng, (made_up, person, place, thing))(rng)


def draw(rng: Random) -> Problem:
    kind = [*QUESTIONS][weighted(rng, SHARES)]
    text = re.sub(r"\{w\}", lambda _: _word(rng), one_of(rng, QUESTIONS[kind]))
    if rng.random() < 0.5:
        text = text[0].upper() + text[1:]
    elif rng.random() < 0.06:
        text = text.upper()
    if rng.random() < 0.1:
        text = one_of(rng, ("please ", "hey, ", "so ", "ok, ", "hello, ")) + text
    text += one_of(rng, ENDS)
    if kind == "unknown" and rng.random() < 0.06:  # no sentence at all
        text = "".join(chr(between(rng, 33, 126)) for _ in range(between(rng, 1, 16)))
    return Problem("tiny_chat", text, 0, kind)


def answer(problem: Problem, rng: Random) -> str:
    parts = [one_of(rng, LEADS[problem.target]), one_of(rng, ABILITIES)]
    if rng.random() < 0.75:
        parts.append(one_of(rng, EXAMPLES))
    return " ".join(parts)


def _reply(leads: tuple[str, ...]) -> re.Pattern[str]:
    """What an answer looks like: a lead, an ability, and an example or none."""
    lead, ability, example = ("|".join(map(re.escape, part)) for part in (leads, ABILITIES, EXAMPLES))
    return re.compile(f"(?:{lead}) (?:{ability})(?: (?:{example}))?")


REPLIES = {kind: _reply(leads) for kind, leads in LEADS.items()}


def is_reply(text: str) -> bool:
    """Whether a text is one of the written replies, of whatever kind."""
    return any(reply.fullmatch(text.strip()) for reply in REPLIES.values())


def right(problem: Problem, text: str) -> bool:
    """One of the written replies of its kind."""
    return REPLIES[problem.target].fullmatch(text.strip()) is not None


CHAT = Task("tiny_chat", draw, answer, right)
TRAINED = EVERY | {CHAT.name: CHAT}  # what the built-in models are trained on
