"""The loops of the block-causal releases.

They follow the description of the methods, one row at a time, with plain Python lists. `logits(ids)` gives aligned
logits (len(ids), V) of a row; under block-causal attention the slots of later blocks cannot change them.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Logits = Callable[[list[int]], Tensor]
NEVER = float("-inf")


# ------------------------------------------------------------------------------------- the releases' loops
def guess(logits: Tensor, mask: int) -> list[tuple[int, float]]:
    """The best token of every position other than MASK, and its probability among all tokens."""
    z = logits.double()
    tokens = z.index_fill(1, torch.tensor([mask]), NEVER).argmax(1)
    chance = z.softmax(1).gather(1, tokens[:, None])[:, 0]
    return list(zip(tokens.tolist(), chance.tolist(), strict=True))


def sdar(
    logits: Logits, prompt: list[int], *, mask: int, ends: set[int], block: int, slots: int, steps: int,
    rule: str, threshold: float = 1.0,
) -> tuple[list[int], list[int], int]:  # fmt: skip
    """SDAR's loop: the final canvas, the answer up to its first stop id, and the denoising passes.

    With the rule `dynamic` and `steps` that divide the block it is LLaDA2.0's loop at temperature 0 as well.
    """
    total = -(-(len(prompt) + slots) // block) * block
    row = prompt + [mask] * (total - len(prompt))
    passes = 0
    for start in range(len(prompt) // block * block, total, block):
        quota = [block // steps + (step < block % steps) for step in range(steps)]
        step = 0
        while True:
            masked = [j for j in range(start, start + block) if row[j] == mask]
            if not masked:
                break
            # Only the blocks so far are read: nothing after the open block exists yet.
            seen = guess(logits(row[: start + block]), mask)
            passes += 1
            by_confidence = sorted(masked, key=lambda j: (-seen[j][1], j))
            if rule == "sequential":
                chosen = masked[: quota[step]]
            elif rule == "dynamic" and sum(seen[j][1] > threshold for j in masked) >= quota[step]:
                chosen = [j for j in masked if seen[j][1] > threshold]
            else:
                chosen = by_confidence[: quota[step]]
            for j in chosen:
                row[j] = seen[j][0]
            step += 1
        if any(token in ends for token in row[len(prompt) : start + block]):
            break
    answer = row[len(prompt) :]
    return answer, _cut(answer, ends), passes


def llada21(
    logits: Logits, prompt: list[int], *, mask: int, ends: set[int], block: int, slots: int, threshold: float,
    edit_threshold: float, edit_passes: int,
) -> tuple[list[int], list[int], int]:  # fmt: skip
    """LLaDA2.1's loop at temperature 0: the final canvas, the answer up to its first stop id, and the passes.

    Masks are written where the best token is likelier than the threshold, else the likeliest one. Tokens of the answer
    in the open block are replaced where another token is likelier than `edit_threshold`. The block is left after a pass
    that found no mask and replaced nothing, or after `edit_passes` passes that found no mask.
    """
    length = -(-(len(prompt) + slots) // block) * block
    row, passes = prompt + [mask] * (length - len(prompt)), 0
    for start in range(len(prompt) // block * block, length, block):
        end, without_masks = start + block, 0
        while True:
            masked = [place for place in range(start, end) if row[place] == mask]
            if not masked:
                without_masks += 1
                if without_masks > edit_passes:
                    break
            best = guess(logits(row[:end]), mask)
            passes += 1
            chosen = [place for place in masked if best[place][1] > threshold]
            chosen = chosen or sorted(masked, key=lambda place: -best[place][1])[:1]
            visible = [place for place in range(max(start, len(prompt)), end) if row[place] != mask]
            replaced = [
                place for place in visible if best[place][0] != row[place] and best[place][1] > edit_threshold
            ]
            for place in (*chosen, *replaced):
                row[place] = best[place][0]
            if not masked and not replaced:
                break
        if ends & set(row[len(prompt) : end]):
            break
    answer = row[len(prompt) :]
    return answer, _cut(answer, ends), passes


def fast_dllm(
    logits: Logits, prompt: list[int], *, mask: int, ends: set[int], block: int, small: int, slots: int,
    threshold: float,
) -> tuple[list[int], list[int], int]:  # fmt: skip
    """Fast-dLLM v2's loop, greedy. `logits` are aligned: position j - 1 of the network gives those of slot j."""
    total = -(-(len(prompt) + slots) // block) * block
    row, passes = list(prompt), 0
    while len(row) < total:
        if len(row) % block == 0:  # the pass over what is finished also gives the next block's first token
            row.append(guess(logits([*row, mask])[-1:], mask)[0][0])
            passes += 1
            if row[-1] in ends:
                break
        start = (len(row) - 1) // block * block
        row += [mask] * (start + block - len(row))
        for first in range(start, start + block, small):
            while not _complete(row, prompt, mask, ends):
                masked = [j for j in range(first, first + small) if row[j] == mask]
                if not masked:
                    break
                seen = guess(logits(row), mask)
                passes += 1
                best = max(masked, key=lambda j: (seen[j][1], -j))
                for j in masked:
                    if seen[j][1] > threshold or j == best:
                        row[j] = seen[j][0]
        if _complete(row, prompt, mask, ends):
            break
    answer = row[len(prompt) :] + [mask] * (total - len(row))
    return answer, _cut(answer, ends), passes


def _complete(row: list[int], prompt: list[int], mask: int, ends: set[int]) -> bool:
    """Whether a stop id stands in the answer with no mask before it."""
    answer = row[len(prompt) :]
    stops = [place for place, token in enumerate(answer) if token in ends]
    return bool(stops) and mask not in answer[: stops[0]]


def _cut(answer: list[int], ends: set[int]) -> list[int]:
    stops = [place for place, token in enumerate(answer) if token in ends]
    return answer[: stops[0] + 1] if stops else answer
