"""A grader with the faults that a library may have; in a file of its own because child processes import it."""

import os


def spell(text, doc):
    if text == "hang":
        while True:
            pass
    if text == "grow":
        return "x" * (1 << 40)
    if text == "die":
        os._exit(1)
    if text == "raise":
        raise KeyError(text)
    if text == "print":
        print("not a reply")
    return f"{text}/{doc['n']}"
