"""Benchmarks as lm-eval tasks: one YAML per task, pure scoring functions, one module that reads the data.

The YAML names what lm-eval needs (prompt, stop strings, graders as filters, metrics); `task.py` adds what
lm-eval cannot say (shots keyed by item, data from a folder, generated code in the sandbox).
"""

from pathlib import Path

FOLDER = Path(__file__).parent
