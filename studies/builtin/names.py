"""Whether a built-in model copies the function's name from the prompt: `python -m studies.builtin.names FOLDER`.

Prints the mean probability of the right name at its slot, with all else of the answer visible, over 32 problems of
`tiny_write`. Chance is 1/8. Exit status 1 below 0.9: train with another seed instead of going on (docs/log.md).
"""

import re
import sys
from random import Random

import torch

from voidpad.builtin.tasks import TASKS
from voidpad.models import load

PROBLEMS = 32


def name_probability(folder: str) -> float:
    model = load(folder, dtype="float32", device="cuda" if torch.cuda.is_available() else "cpu")
    rng, task, probabilities = Random(7), TASKS["tiny_write"], []
    for _ in range(PROBLEMS):
        problem = task.sample(rng)
        prompt, answer = model.encode(problem.prompt), model.tokenizer(task.answer(problem, rng))["input_ids"]
        written = re.search(r"function (\w+)", problem.prompt)
        assert written is not None
        texts = [model.tokenizer.decode([token]).strip() for token in answer]
        slot = len(prompt) + texts.index(written[1])
        row = [*prompt, *answer, model.roles.eos]
        right, row[slot] = row[slot], model.roles.mask
        with torch.inference_mode():
            logits = model.net(torch.tensor([row], device=model.device)).logits[0, slot - model.family.shift]
        probabilities.append(float(logits.softmax(-1)[right]))
    return sum(probabilities) / len(probabilities)


if __name__ == "__main__":
    mean = name_probability(sys.argv[1])
    print(f"mean probability of the function's name {mean:.3f}")
    sys.exit(mean < 0.9)
