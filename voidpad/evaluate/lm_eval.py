"""`python -m voidpad.evaluate.lm_eval`: lm-evaluation-harness with its own options, our model and our tasks.

lm-eval discovers no models or tasks from outside, so this module registers `voidpad` and adds our task folder
before it hands over. Our `gsm8k`, `humaneval` and `mbpp` then stand in for lm-eval's tasks of the same names.

    python -m voidpad.evaluate.lm_eval --model voidpad --model_args pretrained=tiny-void,plan=void --tasks tiny_expr
"""

import sys

from lm_eval.__main__ import cli_evaluate

from voidpad.errors import ConfigError, VoidpadError
from voidpad.evaluate.harness import VoidpadLM
from voidpad.evaluate.tasks import FOLDER

__all__ = ["VoidpadLM", "main", "with_our_tasks"]


def with_our_tasks(arguments: list[str]) -> list[str]:
    """The arguments, with our task folder unless the user names one."""
    named = any(word.split("=")[0] == "--include_path" for word in arguments)
    asks_for_help = not arguments or {"-h", "--help"} & set(arguments)
    return arguments if named or asks_for_help else [*arguments, "--include_path", str(FOLDER)]


def main() -> None:
    sys.argv[1:] = with_our_tasks(sys.argv[1:])
    try:
        cli_evaluate()
    except VoidpadError as error:
        print(f"voidpad: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 1)


if __name__ == "__main__":
    main()
