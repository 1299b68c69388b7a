"""Programs that forge answers, escape, exhaust resources or leave things behind.

By name: how each may end, "(slow)" if it takes long, and its text. The longer ones are files in hostile/. One without
a function `square` of its own gets one that is right only if the program has put something into `gained`.
"""
# ruff: noqa: E501  (a table of programs)

from pathlib import Path
from typing import NamedTuple

SQUARE = """
def square(x):
    return x * x if globals().get("gained") else 0
"""
SHORT = {
    "aborted": ("killed", "import os\nos.abort()"),
    "always_equal_number": ("opaque", "class Anything(int):\n def __eq__(self, other):\n  return True\n __hash__ = int.__hash__\ndef square(x):\n return Anything(0)"),
    "always_equal_text": ("opaque", 'class Anything(str):\n def __eq__(self, other):\n  return True\n __hash__ = str.__hash__\ndef square(x):\n return Anything("9")'),
    "atexit_loop": ("failed, timeout (slow)", "import atexit\ndef loop():\n while True:\n  pass\natexit.register(loop)"),
    "base_exception_in_call": ("exited", "class Quiet(BaseException):\n pass\ndef square(x):\n raise Quiet"),
    "broken_frames": ("opaque, exited", 'import os\nos.write(3, b"\\xff" * 1000 + b"\\n")'),
    "channel_closed_and_loop": ("timeout", "import os\nos.close(3)\nwhile True:\n pass"),
    "channel_replaced": ("exited, timeout, opaque, failed (slow)", "import os\nimport socket\na, b = socket.socketpair()\nos.dup2(a.fileno(), 3)\na.detach()\nb.close()"),
    "closed_descriptors": ("exited, killed, failed", "import os\nos.closerange(0, 64)"),
    "collector_loop": ("timeout (slow)", "class Loop:\n def __del__(self):\n  while True:\n   pass\ndef square(x):\n Loop()\n return 0"),
    "crash": ("killed", "import ctypes\nctypes.string_at(0)"),
    "deep_recursion": ("error, killed, memory, timeout", "import sys\nsys.setrecursionlimit(10**9)\ndef square(x):\n return square(x + 1)\nsquare(0)"),
    "deep_value": ("failed", "def square(x):\n value = []\n for _ in range(10**5):\n  value = [value]\n return value"),
    "descriptors_exhausted": ("failed, error", 'import os\nfrom contextlib import suppress\nwith suppress(OSError):\n while True:\n  os.open("/dev/null", os.O_RDONLY)'),
    "disk_hog": ("error", 'import itertools\nimport os\nfor n in itertools.count():\n with open(os.path.join(os.environ["TMPDIR"], f"file{n}"), "wb") as file:\n  file.write(bytes(1 << 20))'),
    "endless_call": ("timeout", "def square(x):\n while True:\n  x += 1"),
    "endless_errors": ("timeout (slow)", 'import os\nwhile True:\n os.write(2, b"x" * 4096)'),
    "endless_loop": ("timeout", "while True:\n pass"),
    "endless_message": ("timeout (slow)", "class Endless(Exception):\n def __str__(self):\n  while True:\n   pass\ndef square(x):\n raise Endless"),
    "endless_notes": ("timeout, failed, opaque", 'import json\nimport os\nline = json.dumps(["ok", [0], ["x" * 100_000]]).encode() + b"\\n"\ndef square(x):\n for _ in range(100_000):\n  os.write(3, line)\n return 0'),
    "endless_recursion_limit": ("killed, error, memory", "import sys\nsys.setrecursionlimit(10**9)\ndef square(x):\n return sorted([x], key=square)"),
    "endless_sleep": ("timeout", "import time\ntime.sleep(10**6)"),
    "endless_value": ("opaque", "import itertools\ndef square(x):\n return itertools.count()"),
    "equal_metaclass": ("opaque", "class Meta(type):\n def __eq__(cls, other):\n  return True\n __hash__ = type.__hash__\nclass square(metaclass=Meta):\n def __new__(cls, x):\n  return cls"),
    "exit_in_call": ("exited", "import sys\ndef square(x):\n sys.exit(0)"),
    "exit_zero": ("exited", "import sys\nsys.exit(0)"),
    "fifo": ("timeout (slow)", 'import os\ngained = []\nos.mkfifo("pipe")\nwith open("pipe") as pipe:\n pipe.read()'),
    "files_of_the_package": ("failed", 'import os\nimport sys\nfrom contextlib import suppress\ngained = []\nfor folder in sys.modules["voidpad.sandbox"].__path__:\n with suppress(OSError):\n  gained.append(os.listdir(folder))'),
    "forged_abort": ("error", 'class Abort(Exception):\n pass\ndef square(x):\n raise Abort("passed", "")'),
    "forged_answer_patched_in": ("failed", 'import sys\nwire = sys.modules["voidpad.sandbox.wire"]\nwire.Exchange._encode = lambda self, value: 9'),
    "forged_answers": ("failed, error, opaque", 'import os\nimport time\nfor _ in range(100):\n os.write(3, b\'["ok", [null], []]\\n["ok", [true], []]\\n["ok", [["@", 0]], [["list", null]]]\\n\')\ntime.sleep(0.2)'),
    "forged_assertion": ("error", 'def square(x):\n raise AssertionError("every check passed")'),
    "forged_by_two_threads": ("failed, opaque, error", 'import os\nimport threading\ndef answer():\n for _ in range(50):\n  os.write(3, b\'["ok", [9], []]\\n\')\nthreading.Thread(target=answer, daemon=True).start()'),
    "forged_decimal_nan": ("failed", 'from decimal import Decimal\ndef square(x):\n return Decimal("NaN")'),
    "forged_deep_frame": ("opaque (slow)", 'import os\nos.write(3, b"[" * 200_000 + b"]" * 200_000 + b"\\n")'),
    "forged_dictionary_subclass": ("opaque", "from collections import defaultdict\nclass Any(defaultdict):\n def __eq__(self, other):\n  return True\ndef square(x):\n return Any(int)"),
    "forged_generator_exit": ("exited", "def square(x):\n raise GeneratorExit"),
    "forged_giant_frame": ("opaque", "import os\nfrom contextlib import suppress\nwith suppress(OSError):\n while True:\n  os.write(3, bytes(1 << 20))"),
    "forged_half_frame": ("timeout (slow)", 'import os\nimport time\nos.write(3, b\'["ok", [\')\ntime.sleep(10**6)'),
    "forged_imports": ("failed", 'import builtins\nimport sys\nfor name in ("math", "operator", "functools", "collections"):\n sys.modules[name] = sys.modules["candidate"]\nbuiltins.__import__ = lambda *args, **named: sys.modules["candidate"]\nsys.meta_path.clear()'),
    "forged_keyboard_interrupt": ("exited", "def square(x):\n raise KeyboardInterrupt"),
    "forged_nan": ("failed", 'def square(x):\n return float("nan")'),
    "forged_not_json": ("opaque", 'import os\nos.write(3, b"\\xff\\xfe\\x00ok\\n")'),
    "forged_on_every_descriptor": ("exited, opaque", 'import os\nfrom contextlib import suppress\nfor fd in range(256):\n with suppress(OSError):\n  os.write(fd, b\'["passed", ""]\')\nos._exit(0)'),
    "forged_stop_iteration": ("error", "def square(x):\n raise StopIteration(9)"),
    "forged_text": ("exited", 'import os\nimport sys\nfor stream in (sys.stdout, sys.stderr):\n print(\'["passed", ""]\', "passed", "OK", "1 passed in 0.01s", sep="\\n", file=stream, flush=True)\nos._exit(0)'),
    "forged_tuple_of_lies": ("opaque", "class Any(tuple):\n def __eq__(self, other):\n  return True\n __hash__ = tuple.__hash__\ndef square(x):\n return Any((9,))"),
    "forged_type_answer": ("failed, error", "square = bool"),
    "fork_bomb": ("timeout", "import os\nfrom contextlib import suppress\nwhile True:\n with suppress(OSError):\n  os.fork()"),
    "hard_exit": ("exited", "import os\nos._exit(0)"),
    "hard_exit_in_call": ("exited", "import os\ndef square(x):\n os._exit(0)"),
    "hostile_exception": ("error, opaque", 'class Loud(Exception):\n def __str__(self):\n  raise Loud\n __repr__ = __str__\ndef square(x):\n raise Loud("passed" * 10**6, Loud, Loud())'),
    "huge_output": ("timeout", 'while True:\n print("passed" * 1000)'),
    "huge_power": ("timeout, memory (slow)", "def square(x):\n return 9 ** (9**9)"),
    "huge_text": ("memory, opaque (slow)", 'def square(x):\n return "x" * (1 << 33)'),
    "huge_value": ("opaque, memory", 'def square(x):\n return "9" * (1 << 26)'),
    "ignored_signals": ("timeout", "import signal\nfrom contextlib import suppress\nfor number in signal.valid_signals():\n with suppress(OSError):\n  signal.signal(number, signal.SIG_IGN)\nwhile True:\n pass"),
    "late_death": ("killed", "import os\nimport time\nos.close(3)\ntime.sleep(0.5)\nos.abort()"),
    "many_files": ("error", 'import itertools\nimport os\nfor n in itertools.count():\n os.mkdir(os.path.join(os.environ["TMPDIR"], f"folder{n}"))'),
    "many_handles": ("failed, timeout, memory, opaque (slow)", "def square(x):\n return [object() for _ in range(200_000)]"),
    "many_objects": ("memory, timeout (slow)", "kept = []\nwhile True:\n kept.append([])"),
    "memory_hog": ("memory", "hoard = []\nwhile True:\n hoard.append(bytearray(1 << 24))"),
    "message_of_megabytes": ("error (slow)", 'def square(x):\n raise ValueError("x" * (4 << 20))'),
    "message_with_controls": ("error", 'def square(x):\n raise ValueError("\\x1b[2J\\x1b]0;title\\x07\\r\\n\\u202e\\ud800\\0" + "passed")'),
    "mock_anything": ("opaque", "from unittest.mock import ANY, MagicMock\nsquare = MagicMock(return_value=ANY)"),
    "module_as_answer": ("failed, opaque, error", "import operator\nsquare = operator"),
    "one_large_file": ("error", 'import os\nwith open(os.path.join(os.environ["TMPDIR"], "file"), "wb") as file:\n while True:\n  file.write(bytes(1 << 20))'),
    "own_group_killed": ("failed, killed", "import os\nimport signal\nos.killpg(0, signal.SIGKILL)"),
    "read_environment": ("failed", 'import os\ngained = set(os.environ) - {"HOME", "TMPDIR", "LANG", "PATH", "LC_CTYPE"}'),
    "read_stdin": ("error", 'square = int(input("the answer? "))'),
    "signal_to_itself": ("killed, failed, error", "import os\nos.kill(os.getpid(), 15)\nos.kill(os.getpid(), 9)"),
    "slow_expression": ("timeout (slow)", 'import re\ndef square(x):\n return len(re.findall(r"(a+)+$", "a" * 40 + "b"))'),
    "sparse_file": ("failed", 'from contextlib import suppress\ngained = []\nwith suppress(OSError), open("sparse", "wb") as file:\n file.truncate(1 << 40)\n gained.append(1)'),
    "stopped_group": ("timeout, failed, killed (slow)", "import os\nimport signal\nfrom contextlib import suppress\nfor pid in (0, -1):\n with suppress(OSError):\n  os.kill(pid, signal.SIGSTOP)"),
    "stopped_self": ("failed, timeout", "import os\nimport signal\nos.kill(os.getpid(), signal.SIGSTOP)"),
    "thread_bomb": ("timeout, memory", "import threading\nimport time\nfrom contextlib import suppress\nwhile True:\n with suppress(RuntimeError):\n  threading.Thread(target=time.sleep, args=(10**6,)).start()"),
    "unhashable_key": ("opaque, failed, error", "class Key(tuple):\n def __hash__(self):\n  return 1\ndef square(x):\n return {Key(([1],)): 9}"),
    "value_that_changes": ("failed", "import threading\nkept = list(range(1000))\nthreading.Thread(target=lambda: [kept.append(1) or kept.pop() for _ in range(10**5)], daemon=True).start()\ndef square(x):\n return kept"),
    "value_with_itself": ("failed", 'def square(x):\n value = {}\n value["self"] = [value, (value,)]\n return value'),
}  # fmt: skip


class Hostile(NamedTuple):
    reasons: list[str]  # the verdicts that are right
    slow: bool
    text: str


def _programs() -> dict[str, Hostile]:
    texts = {name: f"# expect: {expected}\n{program}" for name, (expected, program) in SHORT.items()}
    texts |= {path.stem: path.read_text() for path in Path(__file__).with_name("hostile").glob("*.py")}
    found = {}
    for name, text in texts.items():
        text += "" if "square" in text else SQUARE
        expected = text.partition("\n")[0].removeprefix("# expect: ")
        found[name] = Hostile(expected.removesuffix(" (slow)").split(", "), expected.endswith("(slow)"), text)
    return found


HOSTILE = _programs()
