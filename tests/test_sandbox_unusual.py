"""Correct programs of unusual kinds: each passes, or the verdict says what the sandbox does not allow."""
# ruff: noqa: E501  (a table of programs)

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import voidpad

if not sys.platform.startswith("linux"):
    pytest.skip("the sandbox is made of Linux namespaces", allow_module_level=True)

UNUSUAL = {
    "twenty threads": ("""
import threading
def f(n):
    seen, barrier = [], threading.Barrier(n)
    def work(k):
        barrier.wait(); seen.append(k)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(n)]
    [t.start() for t in threads]; [t.join() for t in threads]
    return sorted(seen)
""", "assert f(20) == list(range(20))"),
    "thread pool": ("""
from concurrent.futures import ThreadPoolExecutor
def f(xs):
    with ThreadPoolExecutor(32) as pool:
        return list(pool.map(lambda x: x * x, xs))
""", "assert f(range(50)) == [x * x for x in range(50)]"),
    "multiprocessing pool": ("""
import multiprocessing
def square(x): return x * x
def f(xs):
    with multiprocessing.Pool(2) as pool:
        return pool.map(square, xs)
""", "assert f([1, 2, 3]) == [1, 4, 9]"),
    "multiprocessing queue": ("""
from multiprocessing import Process, Queue
def work(queue, x): queue.put(x + 1)
def f(x):
    queue = Queue()
    process = Process(target=work, args=(queue, x)); process.start()
    result = queue.get(); process.join()
    return result
""", "assert f(4) == 5"),
    "multiprocessing value and lock": ("""
from multiprocessing import Process, Value, Lock
def work(v, lock):
    for _ in range(50):
        with lock: v.value += 1
def f():
    v, lock = Value("i", 0), Lock()
    ps = [Process(target=work, args=(v, lock)) for _ in range(3)]
    [p.start() for p in ps]; [p.join() for p in ps]
    return v.value
""", "assert f() == 150"),
    "process pool executor": ("""
from concurrent.futures import ProcessPoolExecutor
def f(xs):
    with ProcessPoolExecutor(2) as pool:
        return sum(pool.map(abs, xs))
""", "assert f([-1, -2]) == 3"),
    "fork and pipe": ("""
import os
def f(x):
    r, w = os.pipe()
    if os.fork() == 0:
        os.write(w, str(x * 2).encode()); os._exit(0)
    os.wait()
    return int(os.read(r, 100))
""", "assert f(21) == 42"),
    "asyncio": ("""
import asyncio
async def one(x):
    await asyncio.sleep(0.001); return x + 1
def f(xs):
    async def main(): return await asyncio.gather(*map(one, xs))
    return asyncio.run(main())
""", "assert f([1, 2]) == [2, 3]"),
    "aware datetime": ("""
from datetime import datetime, timezone, timedelta
def f(): return datetime(2024, 1, 2, 3, tzinfo=timezone.utc)
def g(d): return d.astimezone(timezone(timedelta(hours=2), "X"))
""", """
from datetime import datetime, timezone, timedelta
assert f() == datetime(2024, 1, 2, 3, tzinfo=timezone.utc) and f().tzinfo is timezone.utc
assert g(f()).hour == 5 and g(f()).tzname() == "X" and g(f()).utcoffset() == timedelta(hours=2)
"""),
    "zone": ("""
from zoneinfo import ZoneInfo
from datetime import datetime
def f(): return datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("Europe/Paris"))
""", """
from datetime import datetime, timedelta
assert f().utcoffset() == timedelta(hours=2) and str(f().tzinfo) == "Europe/Paris"
"""),
    "own zone": ("""
from datetime import datetime, tzinfo, timedelta
class Z(tzinfo):
    def utcoffset(self, d): return timedelta(hours=1)
    def dst(self, d): return timedelta(0)
def f(): return datetime(2024, 1, 1, 1, tzinfo=Z())
""", "from datetime import datetime, timezone\nassert f() == datetime(2024, 1, 1, tzinfo=timezone.utc)"),
    "aware time": ("from datetime import time, timezone\ndef f(): return time(1, 2, tzinfo=timezone.utc)",
                   "from datetime import time, timezone\nassert f() == time(1, 2, tzinfo=timezone.utc)"),
    "timezone value": ("from datetime import timezone, timedelta\ndef f(h): return timezone(timedelta(hours=h))",
                       "from datetime import timezone, timedelta\nassert f(3) == timezone(timedelta(hours=3))"),
    "memoryview": ("def f(b): return memoryview(b)[1:3]", "assert f(b'abcd') == b'bc' and bytes(f(b'abcd')) == b'bc'"),
    "memoryview argument": ("def f(v): return bytes(v[::-1])", "assert f(memoryview(b'abc')) == b'cba'"),
    "wide memoryview": ("import array\ndef f(): return memoryview(array.array('i', [1, 2]))",
                        "assert f().tolist() == [1, 2] and f().format == 'i'"),
    "array": ("import array\ndef f(xs): return array.array('d', xs)",
              "import array\nassert f([1, 2]) == array.array('d', [1.0, 2.0]) and list(f([3])) == [3.0]"),
    "deep list": ("def f(n):\n x = []\n for _ in range(n): x = [x]\n return x",
                  "x, n = f(700), 0\nwhile x: x, n = x[0], n + 1\nassert n == 700"),
    "deep argument": ("def f(x):\n n = 0\n while x: x, n = x[0], n + 1\n return n",
                      "x = []\nfor _ in range(700): x = [x]\nassert f(x) == 700"),
    "deep mixture": ("def f(n):\n x = None\n for k in range(n): x = {k: (x,)}\n return x",
                     "x, n = f(300), 0\nwhile x: x, n = next(iter(x.values()))[0], n + 1\nassert n == 300"),
    "deep recursion": ("def f(n): return 0 if n == 0 else 1 + f(n - 1)", "assert f(900) == 900"),
    "raised recursion limit": ("import sys\nsys.setrecursionlimit(20000)\ndef f(n): return 0 if n == 0 else 1 + f(n - 1)",
                               "assert f(9000) == 9000"),
    "recursion error is caught": ("def g(): return g()\ndef f():\n try: g()\n except RecursionError: return 'deep'",
                                  "assert f() == 'deep'"),
    "huge integer": ("def f(n): return 7 ** n", "assert f(20000) == 7 ** 20000"),
    "integer text limit": ("import sys\ndef f(n):\n sys.set_int_max_str_digits(0)\n return len(str(7 ** n))",
                           "assert f(9000) == 7606"),
    "signed zero and nan": ("def f(): return -0.0, float('nan')",
                            "import math\na, b = f()\nassert math.copysign(1, a) == -1 and b != b"),
    "surrogates": ("def f(s): return s[::-1]", "assert f('a\\ud800') == '\\ud800a'"),
    "named tuple": ("from typing import NamedTuple\nclass P(NamedTuple):\n x: int\n y: int\ndef f(): return P(1, 2)",
                    "assert f() == (1, 2)"),
    "dataclass fields": ("from dataclasses import dataclass, asdict\n@dataclass\nclass P:\n x: int\ndef f(): return P(3)\n"
                         "def g(p): return asdict(p)", "assert f().x == 3 and g(f()) == {'x': 3}"),
    "slots": ("class A:\n __slots__ = ('x',)\n def __init__(s, x): s.x = x", "a = A(1)\na.x = 5\nassert a.x == 5"),
    "property": ("class A:\n @property\n def x(self): return 4", "assert A().x == 4"),
    "class and static methods": ("class A:\n n = 2\n @classmethod\n def f(c): return c.n\n @staticmethod\n def g(): return 3",
                                 "assert A.f() == 2 and A().g() == 3"),
    "context manager": ("from contextlib import contextmanager\nlog = []\n@contextmanager\ndef c():\n log.append(1)\n yield 5\n"
                        " log.append(2)\ndef f():\n with c() as x: return x, list(log)",
                        "assert f() == (5, [1]) and log == [1, 2]"),
    "decorator with state": ("def counted(g):\n def h(*a):\n  h.calls += 1\n  return g(*a)\n h.calls = 0\n return h\n"
                             "@counted\ndef f(x): return x", "f(1); f(2)\nassert f.calls == 2"),
    "lru cache": ("from functools import lru_cache\n@lru_cache(None)\ndef f(n): return n if n < 2 else f(n-1) + f(n-2)",
                  "assert f(80) == 23416728348467685"),
    "metaclass": ("class M(type):\n def __len__(c): return 7\nclass A(metaclass=M): pass\ndef f(): return len(A)",
                  "assert f() == 7"),
    "generator send": ("def f():\n x = yield 1\n yield x * 2", "g = f()\nassert next(g) == 1 and g.send(5) == 10"),
    "infinite generator": ("def f():\n n = 0\n while True:\n  yield n\n  n += 1",
                           "import itertools\nassert list(itertools.islice(f(), 5)) == [0, 1, 2, 3, 4]"),
    "closures": ("def f():\n n = 0\n def g():\n  nonlocal n\n  n += 1\n  return n\n return g",
                 "g = f()\nassert [g(), g(), g()] == [1, 2, 3]"),
    "callback that calls back": ("def f(g, n): return n if n == 0 else g(f, g, n - 1) + 1",
                                 "assert f(lambda f, g, n: f(g, n), 5) == 5"),
    "exception chain": ("def f():\n try: 1 / 0\n except ZeroDivisionError as e: raise ValueError('x') from e",
                        "try:\n    f()\n    assert False\nexcept ValueError as e:\n    assert str(e) == 'x'"),
    "exception group": ("def f(): raise ExceptionGroup('g', [ValueError(1)])",
                        "try:\n    f()\n    assert False\nexcept Exception as e:\n    assert 'g' in str(e)"),
    "exception notes and args": ("def f(): raise KeyError('a', 2)",
                                 "try:\n    f()\n    assert False\nexcept KeyError as e:\n    assert e.args == ('a', 2)"),
    "match statement": ("def f(x):\n match x:\n  case [a, *_]: return a\n  case {'k': v}: return v\n  case _: return None",
                        "assert (f([1, 2]), f({'k': 3}), f(5)) == (1, 3, None)"),
    "walrus and star": ("def f(*a, **k): return [y for x in a if (y := x * 2) > 2], {**k, 'z': 1}",
                        "assert f(1, 2, a=3) == ([4], {'a': 3, 'z': 1})"),
    "future annotations": ("from __future__ import annotations\ndef f(x: Nowhere) -> Nothing: return x", "assert f(1) == 1"),
    "typing at run time": ("from typing import TypeVar, Generic, Optional\nT = TypeVar('T')\nclass B(Generic[T]):\n"
                           " def __init__(s, v: Optional[T] = None): s.v = v", "assert B[int](3).v == 3"),
    "unicode names": ("def f(\u03c0, \u0434\u0430=2): return \u03c0 * \u0434\u0430", "assert f(3) == 6"),
    "print a lot": ("def f(x):\n print('debug', x)\n return x", "assert [f(n) for n in range(300)] == list(range(300))"),
    "stderr and logging": ("import logging, sys, warnings\ndef f():\n logging.warning('a'); print('b', file=sys.stderr)\n"
                           " warnings.warn('c')\n return 1", "assert f() == 1"),
    "redirected output": ("import io, contextlib\ndef f():\n with contextlib.redirect_stdout(io.StringIO()) as o: print('x')\n"
                          " return o.getvalue()", "assert f() == 'x\\n'"),
    "files in the current folder": ("def f():\n with open('a.txt', 'w') as o: o.write('hi')\n return open('a.txt').read()",
                                    "assert f() == 'hi'"),
    "temporary folder": ("import tempfile, os\ndef f():\n with tempfile.TemporaryDirectory() as d:\n"
                         "  p = os.path.join(d, 'x'); open(p, 'w').close()\n  return os.listdir(d)", "assert f() == ['x']"),
    "file in /tmp": ("import pathlib\ndef f():\n p = pathlib.Path('/tmp/a'); p.write_text('b'); return p.read_text()",
                     "assert f() == 'b'"),
    "sqlite": ("import sqlite3\ndef f():\n c = sqlite3.connect(':memory:')\n return c.execute('select 1 + 1').fetchone()",
               "assert f() == (2,)"),
    "pickle of an own class": ("import pickle\nclass A:\n x = 1\ndef f(): return pickle.loads(pickle.dumps(A())).x",
                               "assert f() == 1"),
    "copy of an own class": ("import copy\nclass A:\n def __init__(s): s.x = [1]\ndef f(): return copy.deepcopy(A()).x",
                             "assert f() == [1]"),
    "json and re and string": ("import json, re, string\ndef f(t): return json.loads(re.sub(r'\\s', '', t))",
                               "assert f('[ 1, 2 ]') == [1, 2]"),
    "decimal context": ("from decimal import Decimal, getcontext\ndef f():\n getcontext().prec = 40\n return Decimal(1) / 7",
                        "assert str(f()).startswith('0.142857142857142857142857142857142857')"),
    "fractions and complex": ("from fractions import Fraction\ndef f(): return Fraction(1, 3) + Fraction(1, 6), (1 + 2j) ** 2",
                              "from fractions import Fraction\nassert f() == (Fraction(1, 2), -3 + 4j)"),
    "secrets and uuid": ("import secrets, uuid, hashlib\ndef f(): return len(secrets.token_hex(4)), uuid.uuid5(uuid.NAMESPACE_DNS,"
                         " 'a').hex[:4], hashlib.sha256(b'').hexdigest()[:4]", "a, b, c = f()\nassert a == 8 and c == 'e3b0'"),
    "time and sleep": ("import time\ndef f():\n t = time.perf_counter(); time.sleep(0.01); return time.perf_counter() - t > 0.009",
                       "assert f()"),
    "signal handler": ("import signal\ndef f():\n seen = []\n signal.signal(signal.SIGALRM, lambda *a: seen.append(1))\n"
                       " signal.setitimer(signal.ITIMER_REAL, 0.01)\n while not seen: pass\n return len(seen)", "assert f() == 1"),
    "signal to itself": ("import os, signal\ndef f():\n seen = []\n signal.signal(signal.SIGUSR1, lambda *a: seen.append(1))\n"
                         " os.kill(os.getpid(), signal.SIGUSR1)\n return seen", "assert f() == [1]"),
    "socket pair": ("import socket\ndef f():\n a, b = socket.socketpair(); a.send(b'x'); return b.recv(1)", "assert f() == b'x'"),
    "selectors": ("import selectors, os\ndef f():\n r, w = os.pipe(); s = selectors.DefaultSelector()\n"
                  " s.register(r, selectors.EVENT_READ); os.write(w, b'x'); return len(s.select(1))", "assert f() == 1"),
    "mmap": ("import mmap\ndef f():\n m = mmap.mmap(-1, 4096); m[:2] = b'ab'; return bytes(m[:2])", "assert f() == b'ab'"),
    "ctypes": ("import ctypes\ndef f(): return ctypes.c_uint8(300).value", "assert f() == 44"),
    "exec and eval": ("def f(s):\n d = {}\n exec(s, d)\n return eval('x + 1', d)", "assert f('x = 4') == 5"),
    "frames": ("import inspect\ndef f(): return inspect.currentframe().f_code.co_name, len(inspect.signature(f).parameters)",
               "assert f() == ('f', 0)"),
    "own builtin inside": ("def sorted_(x): return x\ndef max(a): return sorted(a)[-1]\ndef f(a): return max(a)",
                           "assert f([1, 3, 2]) == 3 and max([1, 2]) == 2"),
    "name of the module": ("def f(): return __name__ != '__main__'", "assert f()"),
    "standard input is empty": ("import sys\ndef f(): return sys.stdin.read()", "assert f() == ''"),
    "garbage collection": ("import gc, weakref\nclass A: pass\ndef f():\n a = A(); r = weakref.ref(a); del a; gc.collect()\n"
                           " return r() is None", "assert f()"),
    "bytes and bytearray methods": ("def f(b): b.extend(b'x'); return bytes(b).hex()", "b = bytearray(b'a')\nassert f(b) == '6178'\n"
                                    "assert b == bytearray(b'ax')"),
    "ordered keys": ("def f(d): return list(d.items())", "assert f({3: 1, 1: 2}) == [(3, 1), (1, 2)]"),
    "many small calls": ("def f(x): return x + 1", "assert sum(f(n) for n in range(3000)) == 4501500"),
    "large result": ("def f(n): return list(range(n))", "assert len(f(200000)) == 200000"),
    "large text": ("def f(n): return 'x' * n", "assert len(f(3000000)) == 3000000"),
}  # fmt: skip

REFUSED = {
    "third-party module": ("import numpy as np\ndef f(): return 1", "assert f() == 1", "only Python's standard library"),
    "subprocess": ("import subprocess\ndef f(): return subprocess.run(['echo'])", "f()", "the sandbox"),
    "os.system": ("import os\ndef f(): return os.system('true')", "assert f() == 0", "the sandbox refuses"),
    "internet": ("import socket\ndef f(): return socket.create_connection(('1.1.1.1', 80), 1)", "f()", "the sandbox"),
    "name lookup": ("import socket\ndef f(): return socket.gethostbyname('localhost')", "f()", "the sandbox"),
    "file of the system": ("def f(): return open('/etc/passwd').read()", "f()", "the sandbox shows"),
    "file outside": ("def f(): open('/home/x', 'w')", "f()", "the sandbox"),
    "two hundred threads": ("import threading, time\ndef f(n):\n ts = [threading.Thread(target=time.sleep, args=(1,)) for _ in range(n)]\n"
                            " [t.start() for t in ts]; [t.join() for t in ts]\n return n", "assert f(200) == 200", "the sandbox allows 64"),
    "many descriptors": ("def f(): return len([open('/dev/null') for _ in range(500)])", "assert f() == 500", "the sandbox allows"),
    "large file": ("def f(): return open('x', 'wb').write(bytes(64 << 20))", "assert f() == 64 << 20", "the sandbox allows"),
    "much memory": ("def f(): return len(bytearray(3 << 30))", "assert f() == 3 << 30", "the sandbox allows"),
    "own class compared": ("class A:\n def __eq__(s, o): return True\ndef f(): return A()", "assert f() == 1", "not plain data"),
    "coroutine": ("async def f(): return 1", "import asyncio\nassert asyncio.run(f()) == 1", "coroutine"),
    "enum compared": ("from enum import Enum\nclass E(Enum):\n a = 1\ndef f(): return E.a", "assert f() == 1", "not plain data"),
    "endless print": ("def f():\n while True: print('x' * 1000)", "f()", "output"),
    "very deep list": ("def f(n):\n x = []\n for _ in range(n): x = [x]\n return x", "f(50000)", "nested"),
    "very large result": ("def f(n): return 'x' * n", "f(50 << 20)", "at most"),
}  # fmt: skip


def test_there_are_enough_unusual_programs():
    assert len(UNUSUAL) + len(REFUSED) >= 60


@pytest.mark.parametrize("name", UNUSUAL)
def test_a_correct_unusual_program_passes(name, sandbox):
    verdict = sandbox.run(*UNUSUAL[name])
    assert verdict.passed, verdict


@pytest.mark.parametrize("name", REFUSED)
def test_a_verdict_says_what_the_sandbox_does_not_allow(name, sandbox):
    program, checks, words = REFUSED[name]
    verdict = sandbox.run(program, checks)
    assert not verdict.passed
    assert words in verdict.detail, verdict
    assert verdict.detail.isprintable()


WEAK = """
import json, sys
from voidpad.sandbox import kernel
kernel.no_new_privileges()
kernel.install(kernel.seccomp_filter(refuse=["unshare"]))
from voidpad.sandbox import Sandbox, SandboxLimits, layers
assert not layers()["pid namespace"]
with Sandbox(weak=True, limits=SandboxLimits(seconds=60)) as sandbox:
    print(json.dumps([verdict.__dict__ for verdict in sandbox.map(json.load(sys.stdin))]))
"""


@pytest.mark.slow
def test_without_namespaces_unusual_programs_pass_or_the_verdict_says_why(sandbox):
    done = subprocess.run([sys.executable, "-c", WEAK], input=json.dumps(list(UNUSUAL.values())), capture_output=True,
                          text=True, check=True)  # fmt: skip
    verdicts = dict(zip(UNUSUAL, json.loads(done.stdout), strict=True))
    refused = {name: verdict["detail"] for name, verdict in verdicts.items() if not verdict["passed"]}
    assert {name: detail for name, detail in refused.items() if "the sandbox" not in detail} == {}
    assert len(refused) < 10


ELSEWHERE = """
import os, sys
from voidpad.sandbox import kernel
kernel.unshare(kernel.NEWNS)
kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
kernel.mount("tmpfs", "/tmp", "tmpfs", data="mode=1777")
place = sys.argv[2]
os.makedirs(place)
kernel.mount(sys.base_prefix, place, flags=kernel.MS_BIND | kernel.MS_REC)
os.chmod(os.path.dirname(place), int(sys.argv[3], 8))
python = place + "/bin/" + os.path.basename(os.path.realpath(sys.executable))
os.execve(python, [python, "-c", sys.argv[1]], {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
"""
IMPORTS = """
import sys
from voidpad.sandbox import Sandbox, SandboxLimits
assert sys.base_prefix == {place!r}, sys.base_prefix
with Sandbox(limits=SandboxLimits(seconds=60)) as sandbox:
    verdict = sandbox.run("import sqlite3, ast, zoneinfo, unittest.mock\\ndef f(): return ast.literal_eval('[1]')", "assert f() == [1]")
    assert verdict.passed, verdict
    verdict = sandbox.run("import os\\ndef f(): return os.access('/tmp', os.W_OK), open('/tmp/x', 'w').write('a')", "assert f() == (True, 1)")
    assert verdict.passed, verdict
    verdict = sandbox.run("open(__import__('os').__file__, 'a')", "")
    assert not verdict.passed, verdict
"""


@pytest.mark.skipif(os.getuid() != 0, reason="mounts")
@pytest.mark.parametrize(
    ("place", "mode"), [("/tmp/a/python", "755"), ("/tmp/home/python", "700"), ("/opt/a/python", "700")]
)
def test_python_may_be_installed_anywhere(sandbox, place, mode):
    if place.startswith("/opt") and not os.path.isdir("/opt"):
        pytest.skip("no /opt")
    covered = Path("/", Path(place).parts[1])
    if Path(voidpad.__file__).is_relative_to(covered):
        pytest.skip(f"voidpad itself lies in {covered}, which the test covers with an empty folder")
    code = IMPORTS.format(place=place)
    made = ELSEWHERE if place.startswith("/tmp") else ELSEWHERE.replace('"/tmp", "tmpfs"', '"/opt", "tmpfs"')
    done = subprocess.run(
        [sys.executable, "-c", made, code, place, mode], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
