"""The release's second MBPP cleaner, which is not wired into its task file: a run's answers graded by it.

    python -m studies.paper.helper_grader RUN --data DATA/benchmarks --allow-code-execution

The paper has two MBPP scores for the same generations (45.38 and 46.51, 38.81 and 39.73). This cleaner drops functions
without `return`, and keeps a text that does not parse as it stands. Prints how many answers pass with it.
"""

import argparse
import ast
import sys
from pathlib import Path
from typing import Any

from voidpad.evaluate import read_run
from voidpad.evaluate.tasks import mbpp
from voidpad.evaluate.tasks.code import Cleaner, names, tidy, tree_of
from voidpad.evaluate.tasks.task import program_test
from voidpad.sandbox import Sandbox, SandboxLimits

STARTS = ("def ", "class ", "import ", "from ")


def names_and_attributes(node: ast.AST) -> set[str]:
    return names(node) | {inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute)}


HELPER = Cleaner((ast.FunctionDef,), (ast.Assign,), returning=True, uses=names_and_attributes)


def helper_program(answer: str, doc: dict[str, Any]) -> str:
    blocks = mbpp.BLOCK.findall(answer)
    lines = mbpp.unfenced(answer).splitlines()
    first = next((at for at, line in enumerate(lines) if line.lstrip().startswith(STARTS)), 0)
    text = tidy(blocks[0] if blocks else "\n".join(lines[first:]))
    tree = tree_of(text)
    return (HELPER.emit(tree, mbpp.authors_entry(doc), text) if tree else "") or text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a run folder with MBPP answers")
    parser.add_argument("--data", type=Path, help="the folder of the benchmark files; without it, the hub")
    parser.add_argument("--allow-code-execution", action="store_true", required=True)
    options = parser.parse_args()
    splits = {"mbpp": "test", "mbpp_974": "everything"}
    docs = mbpp.items(options.data)
    jobs = []
    for example in read_run(options.run).examples:
        if example["task"] in splits:
            doc = docs[splits[example["task"]]][example["index"]]
            jobs.append(program_test(helper_program(example["output"], doc), mbpp.checks(doc), doc))
    if not jobs:
        sys.exit(f"{options.run}: no answers to mbpp or mbpp_974")
    with Sandbox(limits=SandboxLimits(seconds=10), workers=2) as sandbox:
        passed = sum(verdict.passed for verdict in sandbox.map(jobs))
    print(f"{passed} of {len(jobs)} pass: {100 * passed / len(jobs):.2f} %")


if __name__ == "__main__":
    main()
