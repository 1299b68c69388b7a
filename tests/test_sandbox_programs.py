"""Correct programs: each passes, or the verdict says what the sandbox does not support."""
# ruff: noqa: E501  (tables of programs)

import os
import subprocess
import sys
from pathlib import Path

import pytest

import voidpad
from voidpad.sandbox import Sandbox, SandboxLimits

if not sys.platform.startswith("linux"):
    pytest.skip("the sandbox is made of Linux namespaces", allow_module_level=True)

EVERYDAY = {
    "missing key of a defaultdict": ("from collections import defaultdict\ndef f(xs):\n d = defaultdict(int)\n for x in xs: d[x] += 1\n return d", "d = f('aab')\nassert d['a'] == 2 and d['z'] == 0 and d == {'a': 2, 'b': 1, 'z': 0}"),
    "defaultdict with a lambda": ("from collections import defaultdict\ndef f(): return defaultdict(lambda: 7)", "assert f()['x'] == 7"),
    "named tuple methods": ("from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(): return P(1, 2)", "p = f()\nassert p.x == 1 and p._asdict() == {'x': 1, 'y': 2} and p._replace(x=5) == (5, 2) and p._fields == ('x', 'y')"),
    "typed named tuple": ("from typing import NamedTuple\nclass P(NamedTuple):\n x: int\n y: int = 3\ndef f(): return P(1)", "p = f()\nassert p == (1, 3) and p.y == 3 and p[0] == 1"),
    "named tuple with a method": ("from typing import NamedTuple\nclass P(NamedTuple):\n x: int\n def double(self): return 2 * self.x\ndef f(): return P(4)", "assert f().double() == 8 and f().x == 4"),
    "named tuple made by the checks": ("from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(p): return p.x + p.y", "assert f(P(1, 2)) == 3"),
    "type of an exception": ("def f(d): return d['x']", "try:\n    f({})\n    assert False\nexcept Exception as e:\n    assert type(e) is KeyError and e.args == ('x',)"),
    "arguments of an exception": ("def f(): raise ValueError('bad', (1, 2), [3])", "try:\n    f()\n    assert False\nexcept ValueError as e:\n    assert e.args == ('bad', (1, 2), [3])"),
    "own exception caught by its name": ("class Empty(Exception): pass\ndef f(x):\n if not x: raise Empty('nothing')\n return x[0]", "try:\n    f([])\n    assert False\nexcept Empty as e:\n    assert str(e) == 'nothing'\nassert f([1]) == 1"),
    "own exception caught by its base": ("class A(ValueError): pass\ndef f(): raise A('x')", "try:\n    f()\n    assert False\nexcept ValueError as e:\n    assert type(e).__name__ == 'A' and isinstance(e, A)"),
    "exception class as a value": ("def f(): return KeyError", "assert f() is KeyError and issubclass(f(), LookupError)"),
    "list subclass with methods": ("class Stack(list):\n def peek(self): return self[-1]\n def push(self, x): self.append(x)", "s = Stack()\ns.push(1)\ns.push(2)\nassert s.peek() == 2 and len(s) == 2 and list(s) == [1, 2]"),
    "context manager in the checks": ("class C:\n def __init__(s): s.log = []\n def __enter__(s):\n  s.log.append('in')\n  return s\n def __exit__(s, *a): s.log.append('out')", "c = C()\nwith c as d:\n    assert d.log == ['in']\nassert c.log == ['in', 'out']"),
    "contextlib in the program": ("from contextlib import contextmanager\nlog = []\n@contextmanager\ndef f(x):\n log.append(x)\n yield x + 1\n log.append(-x)", "with f(3) as y:\n    assert y == 4\nassert log == [3, -3]"),
    "context manager class": ("class Timer:\n def __enter__(s):\n  s.on = True\n  return s\n def __exit__(s, *a):\n  s.on = False\n  return False\ndef f():\n with Timer() as t: inside = t.on\n return inside, t.on", "assert f() == (True, False)\nwith Timer() as t:\n    assert t.on\nassert not t.on"),
    "generator as an argument": ("def f(xs): return sum(xs)", "assert f(x * x for x in range(4)) == 14"),
    "iterator as an argument": ("def f(it): return next(it), list(it)", "assert f(iter([1, 2, 3])) == (1, [2, 3])"),
    "map and zip as arguments": ("def f(a, b): return [x + y for x, y in zip(a, b)]", "assert f(map(int, '12'), iter([3, 4])) == [4, 6]"),
    "file object as an argument": ("def f(lines): return [line.strip() for line in lines]", "import io\nassert f(io.StringIO('a\\nb\\n')) == ['a', 'b']"),
    "itemgetter as a key": ("def f(xs, key): return sorted(xs, key=key)", "from operator import itemgetter\nassert f([(1, 2), (2, 1)], itemgetter(1)) == [(2, 1), (1, 2)]"),
    "class as an argument": ("def f(kind, x): return kind(x)", "assert f(int, '5') == 5 and f(list, 'ab') == ['a', 'b']"),
    "sorting objects by an attribute": ("class P:\n def __init__(s, n): s.n = n\ndef f(): return [P(3), P(1)]", "assert [p.n for p in sorted(f(), key=lambda p: p.n)] == [1, 3]"),
    "deleting an item": ("class D:\n def __init__(s): s.d = {1: 2}\n def __delitem__(s, k): del s.d[k]\n def __len__(s): return len(s.d)", "d = D()\ndel d[1]\nassert len(d) == 0"),
    "deleting an attribute": ("class A: pass\ndef f():\n a = A(); a.x = 1\n return a", "a = f()\ndel a.x\nassert not hasattr(a, 'x')"),
    "attribute with a default": ("class A:\n x = 1", "assert getattr(A(), 'y', 5) == 5 and getattr(A(), 'x') == 1"),
    "tree built by the checks": ("class T:\n def __init__(s, v): s.v, s.l, s.r = v, None, None\ndef f(t): return 0 if t is None else 1 + max(f(t.l), f(t.r))", "t = T(1)\nt.l = T(2)\nt.l.r = T(3)\nassert f(t) == 3"),
    "queue class": ("class Q:\n def __init__(s): s.x = []\n def put(s, v): s.x.append(v)\n def get(s): return s.x.pop(0)\n def __len__(s): return len(s.x)\n def __bool__(s): return bool(s.x)", "q = Q()\nq.put(1); q.put(2)\nassert q.get() == 1 and len(q) == 1 and q"),
    "iterator class": ("class R:\n def __init__(s, n): s.n = n\n def __iter__(s): return s\n def __next__(s):\n  if s.n == 0: raise StopIteration\n  s.n -= 1\n  return s.n", "assert list(R(3)) == [2, 1, 0]"),
    "callable class": ("class Add:\n def __init__(s, n): s.n = n\n def __call__(s, x): return x + s.n", "assert Add(2)(3) == 5 and list(map(Add(1), [1, 2])) == [2, 3]"),
    "decorator used by the checks": ("def twice(g):\n def h(*a): return g(*a) * 2\n return h", "@twice\ndef three(): return 3\nassert three() == 6"),
    "cache info": ("from functools import lru_cache\n@lru_cache\ndef f(n): return n", "f(1); f(1)\nassert f.cache_info().hits == 1"),
    "counter": ("from collections import Counter\ndef f(s): return Counter(s)", "c = f('aab')\nassert c['a'] == 2 and c['z'] == 0 and c.most_common(1) == [('a', 2)]"),
    "ordered dictionary": ("from collections import OrderedDict\ndef f(): return OrderedDict(a=1, b=2)", "d = f()\nd.move_to_end('a')\nassert list(d) == ['b', 'a']"),
    "deque": ("from collections import deque\ndef f(xs): return deque(xs, maxlen=2)", "assert list(f([1, 2, 3])) == [2, 3] and f([]).maxlen == 2"),
    "enum value and name": ("from enum import Enum\nclass C(Enum):\n RED = 1\ndef f(): return C.RED", "assert f().value == 1 and f().name == 'RED'"),
    "property and setter": ("class A:\n def __init__(s): s._x = 1\n @property\n def x(s): return s._x\n @x.setter\n def x(s, v): s._x = v * 2", "a = A()\na.x = 4\nassert a.x == 8"),
    "abstract class": ("from abc import ABC, abstractmethod\nclass S(ABC):\n @abstractmethod\n def area(s): ...\nclass Q(S):\n def __init__(s, a): s.a = a\n def area(s): return s.a ** 2", "assert Q(3).area() == 9\ntry:\n    S()\n    assert False\nexcept TypeError:\n    pass"),
    "argument sorted in place": ("def f(xs): xs.sort()", "a = [3, 1, 2]\nassert f(a) is None and a == [1, 2, 3]"),
    "one argument twice": ("def f(a, b): a.append(1); return len(b)", "x = []\nassert f(x, x) == 1 and x == [1]"),
    "containers changed in place": ("def f(s, b, q): s.add(1); b[:] = b'z'; q.pop()", "import collections\ns, b, q = set(), bytearray(b'ab'), collections.deque([1, 2])\nf(s, b, q)\nassert (s, b, q) == ({1}, bytearray(b'z'), collections.deque([1]))"),
    "argument changed before an exception": ("def f(x): x.append(1); raise ValueError('no')", "a = []\ntry:\n    f(a)\n    assert False\nexcept ValueError as e:\n    assert str(e) == 'no'\nassert a == [1]"),
    "a list in itself": ("def f():\n a = []\n a.append(a)\n return a", "a = f()\nassert a[0] is a"),
    "not the main module": ("if __name__ == '__main__':\n raise SystemExit\ndef f(): return 1", "assert f() == 1"),
    "a global that changes": ("count = 0\ndef f():\n global count\n count += 1", "f()\nf()\nassert count == 2"),
    "modules with libraries": ("import sqlite3, ssl, ctypes, zoneinfo, lzma, unittest", "assert True"),
    "argument returned": ("def f(d):\n d['n'] = 1\n return d", "d = {}\nassert f(d) is d and d == {'n': 1}"),
    "nested argument changed": ("def f(m):\n for row in m: row.reverse()", "m = [[1, 2], [3, 4]]\nf(m)\nassert m == [[2, 1], [4, 3]]"),
    "default argument that remembers": ("def f(x, seen=[]):\n seen.append(x)\n return seen", "assert f(1) == [1] and f(2) == [1, 2]"),
    "generator protocol": ("def f():\n total = 0\n while True:\n  x = yield total\n  total += x", "g = f()\nnext(g)\nassert g.send(2) == 2 and g.send(3) == 5\ng.close()"),
    "printed output": ("def f(n):\n for i in range(n): print(i)\n return n", "assert f(3) == 3"),
    "match object": ("import re\ndef f(s): return re.match(r'(\\w)(\\d)', s)", "m = f('a1')\nassert m.group(1) == 'a' and m.groups() == ('a', '1') and f('?') is None"),
    "closure with state": ("def f():\n n = 0\n def g():\n  nonlocal n\n  n += 1\n  return n\n return g", "g = f()\ng()\nassert g() == 2"),
    "monkey patched attribute": ("class A:\n def f(s): return 1\ndef g(a): return a.f()", "a = A()\na.f = lambda: 5\nassert g(a) == 5"),
    "class attribute changed": ("class A:\n n = 0\n def inc(s): A.n += 1", "A().inc()\nA().inc()\nassert A.n == 2"),
    "string formatting of an object": ("class P:\n def __init__(s, x): s.x = x\n def __repr__(s): return f'P({s.x})'", "assert repr(P(1)) == 'P(1)' and str(P(2)) == 'P(2)' and f'{P(3)}' == 'P(3)'"),
    "assertion raised by the program": ("def f(x):\n assert x > 0, 'positive'\n return x", "try:\n    f(-1)\nexcept AssertionError as e:\n    assert str(e) == 'positive'\nelse:\n    raise ValueError"),
    "checks that import": ("def f(x): return x ** 0.5", "import math\nfrom collections import Counter\nassert math.isclose(f(2), math.sqrt(2)) and Counter('a')['a'] == 1"),
    "star arguments": ("def f(*a, k=1, **kw): return a, k, kw", "assert f(1, 2, k=3, z=4) == ((1, 2), 3, {'z': 4})"),
    "async function run by the program": ("import asyncio\nasync def g(x): return x + 1\ndef f(x): return asyncio.run(g(x))", "assert f(1) == 2"),
    "custom exception attributes": ("class Short(Exception):\n def __init__(s, need, have):\n  super().__init__(f'need {need}, have {have}')\n  s.need, s.have = need, have\ndef f(need, have):\n if have < need: raise Short(need, have)\n return have - need", "try:\n    f(5, 2)\n    assert False\nexcept Short as e:\n    assert e.need == 5 and e.have == 2 and str(e) == 'need 5, have 2'\nassert f(1, 3) == 2"),
    "custom exception with its own text": ("class Bad(ValueError):\n def __init__(s, code): s.code = code\n def __str__(s): return f'code {s.code}'\ndef f(): raise Bad(7)", "try:\n    f()\n    assert False\nexcept ValueError as e:\n    assert str(e) == 'code 7' and e.code == 7"),
    "json decode error": ("import json\ndef f(s): return json.loads(s)", "import json\nassert f('[1]') == [1]\ntry:\n    f('{')\n    assert False\nexcept json.JSONDecodeError as e:\n    assert e.pos == 1 and isinstance(e, ValueError)"),
    "unicode decode error": ("def f(b): return b.decode('utf-8')", "assert f(b'\\xc3\\xa9') == '\\xe9'\ntry:\n    f(b'\\xff')\n    assert False\nexcept UnicodeDecodeError as e:\n    assert e.start == 0"),
    "frozen dataclass refuses": ("from dataclasses import dataclass\n@dataclass(frozen=True)\nclass P:\n x: int\ndef f(p): p.x = 2", "import dataclasses\ntry:\n    f(P(1))\n    assert False\nexcept dataclasses.FrozenInstanceError:\n    pass\nexcept AttributeError:\n    assert False"),
    "key error text": ("def f(d, k): return d[k]", "try:\n    f({'a': 1}, 'b')\n    assert False\nexcept KeyError as e:\n    assert str(e) == \"'b'\" and repr(e) == \"KeyError('b')\""),
    "stop iteration of next": ("def f(xs): return iter(xs)", "it = f([1])\nassert next(it) == 1 and next(it, None) is None\ntry:\n    next(it)\n    assert False\nexcept StopIteration:\n    pass"),
    "generator throw and close": ("def f():\n try:\n  yield 1\n except ValueError:\n  yield 'caught'\n", "g = f()\nassert next(g) == 1\nassert g.throw(ValueError) == 'caught'\ng.close()"),
    "tree traversal generator": ("class Node:\n def __init__(s, v, l=None, r=None): s.v, s.l, s.r = v, l, r\n def __iter__(s):\n  if s.l: yield from s.l\n  yield s.v\n  if s.r: yield from s.r\ndef f(t): return list(t)", "t = Node(2, Node(1), Node(3))\nassert f(t) == [1, 2, 3] and list(t) == [1, 2, 3] and [x for x in t] == [1, 2, 3]"),
    "matrix class": ("class M:\n def __init__(s, rows): s.rows = rows\n def __matmul__(s, o): return M([[sum(a * b for a, b in zip(r, c)) for c in zip(*o.rows)] for r in s.rows])\n def __getitem__(s, ij): return s.rows[ij[0]][ij[1]]\ndef f(a, b): return (M(a) @ M(b)).rows", "assert f([[1, 2], [3, 4]], [[0, 1], [1, 0]]) == [[2, 1], [4, 3]] and M([[7]])[0, 0] == 7"),
    "state machine with enum": ("from enum import Enum, auto\nclass S(Enum):\n OFF = auto()\n ON = auto()\nclass Lamp:\n def __init__(s): s.state = S.OFF\n def press(s): s.state = S.ON if s.state is S.OFF else S.OFF", "l = Lamp()\nl.press()\nassert l.state.name == 'ON' and l.state is S.ON\nl.press()\nassert l.state is S.OFF"),
    "enum iteration": ("from enum import Enum\nclass C(Enum):\n RED = 'r'\n BLUE = 'b'\ndef f(v): return C(v).name", "assert f('b') == 'BLUE' and [c.name for c in C] == ['RED', 'BLUE'] and len(C) == 2 and C['RED'].value == 'r'"),
    "dataclass tools": ("from dataclasses import dataclass, field, asdict, replace\n@dataclass(order=True)\nclass P:\n n: int\n tags: list = field(default_factory=list)\ndef f(p): return asdict(p)\ndef bigger(p): return replace(p, n=p.n + 1)\ndef top(ps): return max(ps).n", "p = P(3, ['a'])\nassert f(p) == {'n': 3, 'tags': ['a']} and bigger(p).n == 4 and top([P(1), P(9)]) == 9"),
    "heap argument changed": ("import heapq\ndef f(h, x): heapq.heappush(h, x)", "h = [2, 5]\nf(h, 1)\nassert h[0] == 1 and sorted(h) == [1, 2, 5]"),
    "itertools iterators": ("import itertools\ndef f(xs): return itertools.permutations(xs)\ndef g(): return itertools.count(1)\ndef h(xs): return itertools.groupby(xs)", "assert list(f([1, 2])) == [(1, 2), (2, 1)]\nc = g()\nassert [next(c) for _ in range(3)] == [1, 2, 3]\nassert [(k, len(list(v))) for k, v in h('aab')] == [('a', 2), ('b', 1)]"),
    "zip and map and enumerate returned": ("def f(a, b): return zip(a, b)\ndef g(xs): return map(str, xs)\ndef h(xs): return enumerate(xs)\ndef r(xs): return reversed(xs)", "assert list(f([1], [2])) == [(1, 2)] and list(g([1])) == ['1'] and dict(h('a')) == {0: 'a'} and list(r([1, 2])) == [2, 1]"),
    "functools reduce and partial": ("from functools import reduce, partial\ndef f(xs): return reduce(lambda a, b: a * b, xs, 1)\ndef g(n): return partial(pow, n)", "assert f([1, 2, 3, 4]) == 24 and g(2)(10) == 1024"),
    "chain map and user dict": ("from collections import ChainMap, UserDict\nclass Lower(UserDict):\n def __setitem__(s, k, v): super().__setitem__(k.lower(), v)\ndef f(): return ChainMap({'a': 1}, {'b': 2})", "d = Lower()\nd['ABC'] = 1\nassert d['abc'] == 1 and len(d) == 1 and list(d) == ['abc'] and dict(d) == {'abc': 1}\nc = f()\nassert c['b'] == 2 and sorted(c) == ['a', 'b']"),
    "shared rows of an argument": ("def f(rows): rows[0].append(1)", "row = [0]\nrows = [row, row]\nf(rows)\nassert row == [0, 1] and rows[1] is row and rows == [[0, 1], [0, 1]]"),
    "list changed while it is iterated": ("def f(xs, x):\n if x % 2: xs.append(x + 1)", "a = [1, 2]\nfor x in a: f(a, x)\nassert a == [1, 2, 2]"),
    "csv and io": ("import csv, io\ndef f(text): return list(csv.DictReader(io.StringIO(text)))\ndef g(rows):\n out = io.StringIO()\n csv.writer(out).writerows(rows)\n return out.getvalue()", "assert f('a,b\\n1,2\\n') == [{'a': '1', 'b': '2'}] and g([[1, 'x,y']]) == '1,\"x,y\"\\r\\n'"),
    "string io returned": ("import io\ndef f(): return io.StringIO('a\\nb')", "s = f()\nassert s.readline() == 'a\\n' and s.read() == 'b' and s.getvalue() == 'a\\nb'"),
    "base64 and hashing": ("import base64, hashlib, zlib\ndef f(s): return base64.b64encode(s.encode()).decode(), hashlib.md5(s.encode()).hexdigest(), zlib.crc32(s.encode())", "assert f('hello') == ('aGVsbG8=', '5d41402abc4b2a76b9719d911017c592', 907060870)"),
    "mutual recursion and closures": ("def even(n): return n == 0 or odd(n - 1)\ndef odd(n): return n != 0 and even(n - 1)\ndef f(n): return [g(n) for g in (even, odd)]\ndef adders(): return [lambda x, i=i: x + i for i in range(3)]", "assert f(10) == [True, False] and [a(10) for a in adders()] == [10, 11, 12]"),
    "descriptor and slots": ("class Positive:\n def __set_name__(s, o, n): s.n = '_' + n\n def __get__(s, o, t=None): return getattr(o, s.n)\n def __set__(s, o, v):\n  if v <= 0: raise ValueError(f'{s.n[1:]} must be positive')\n  setattr(o, s.n, v)\nclass Box:\n size = Positive()\n def __init__(s, size): s.size = size", "b = Box(3)\nb.size = 5\nassert b.size == 5\ntry:\n    b.size = -1\n    assert False\nexcept ValueError as e:\n    assert str(e) == 'size must be positive'"),
    "getattr fallback and callable objects": ("class Proxy:\n def __init__(s, d): s.__dict__['d'] = d\n def __getattr__(s, n):\n  try: return s.d[n]\n  except KeyError: raise AttributeError(n)\n def __call__(s, **k):\n  s.d.update(k)\n  return s", "p = Proxy({'a': 1})\nassert p.a == 1 and p(b=2).b == 2 and not hasattr(p, 'zzz') and getattr(p, 'zzz', 0) == 0"),
    "checks with a helper and a table": ("def f(x): return x if x < 2 else f(x - 1) + f(x - 2)", "cases = [(0, 0), (1, 1), (10, 55)]\ndef near(a, b, tol=1e-9):\n    return abs(a - b) <= tol\nfor given, want in cases:\n    assert near(f(given), want), f'f({given}) should be {want}'\nassert all(f(g) == w for g, w in cases) and max(map(f, range(5))) == 3"),
    "check function with a candidate": ("def candidate_sum(xs): return sum(xs)", "def check(candidate):\n    assert candidate([1, 2]) == 3\n    assert candidate([]) == 0, 'empty'\ncheck(candidate_sum)"),
    "unittest style checks": ("def f(x): return x * 2", "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(f(2), 4)\n        with self.assertRaises(TypeError):\n            f(None)\n        self.assertAlmostEqual(f(0.1), 0.2)\nresult = unittest.TextTestRunner(stream=__import__('io').StringIO()).run(unittest.defaultTestLoader.loadTestsFromTestCase(T))\nassert result.wasSuccessful(), result.failures + result.errors"),
    "class handed to a program function": ("def f(cls, n): return [cls(i) for i in range(n)]\nclass P:\n def __init__(s, x): s.x = x", "assert [p.x for p in f(P, 3)] == [0, 1, 2] and f(str, 2) == ['0', '1']"),
    "key function of the checks": ("def f(xs, key): return max(xs, key=key), sorted(xs, key=key, reverse=True), list(filter(key, xs))", "assert f([1, -5, 0], abs) == (-5, [-5, 1, 0], [1, -5]) and f(['a', 'bb'], len)[0] == 'bb' and f([1, 2], lambda x: -x)[0] == 1"),
    "isinstance of builtins": ("def f(x): return x", "import collections.abc\nassert isinstance(f(1), int) and isinstance(f([1]), list) and not isinstance(f('a'), int) and type(f({})) is dict and isinstance(f((1,)), tuple) and isinstance(f({}), collections.abc.Mapping)"),
    "length hint and indexing of a sequence class": ("class S:\n def __init__(s, xs): s.xs = xs\n def __len__(s): return len(s.xs)\n def __getitem__(s, i): return s.xs[i]", "s = S([1, 2, 3])\nassert s[0] == 1 and s[-1] == 3 and s[1:] == [2, 3] and len(s) == 3 and list(s) == [1, 2, 3] and list(reversed(s)) == [3, 2, 1]"),
    "module level constant and rebinding": ("LIMIT = 3\nTABLE = {'a': [1]}\ndef f(): return LIMIT\ndef g(): TABLE['a'].append(LIMIT)", "assert f() == 3 and LIMIT == 3\ng()\nassert TABLE == {'a': [1, 3]}"),
    "exception instance returned": ("def f(x):\n try: return int(x)\n except ValueError as e: return e", "e = f('x')\nassert isinstance(e, ValueError) and 'invalid literal' in str(e)"),
    "range and slice returned": ("def f(): return range(5), slice(1, 3)", "r, s = f()\nassert r == range(5) and [0, 1, 2, 3][s] == [1, 2]"),
    "path objects": ("from pathlib import Path, PurePosixPath\ndef f(p): return PurePosixPath(p).suffix, str(PurePosixPath(p).parent), PurePosixPath(p)", "a = f('/a/b.txt')\nassert a[:2] == ('.txt', '/a') and str(a[2]) == '/a/b.txt'"),
    "keyword only and positional only": ("def f(a, /, b, *, c): return a, b, c", "assert f(1, b=2, c=3) == (1, 2, 3)\ntry:\n    f(a=1, b=2, c=3)\n    assert False\nexcept TypeError:\n    pass"),
}  # fmt: skip

SAID = {  # right in one process, and what the sandbox says about it
    "late change of an argument": ("kept = []\ndef f(xs): kept.append(xs)\ndef g(): kept[0].append(9)", "a = [1]\nf(a)\ng()\nassert a == [1, 9]", "after the call"),
    "value changed after it was passed": ("class S:\n def __init__(s, xs): s.xs = xs\n def total(s): return sum(s.xs)", "a = [1]\ns = S(a)\na.append(2)\nassert s.total() == 3", "after they have passed it"),
    "list read before a change": ("class S:\n def __init__(s): s.xs = []\n def add(s, x): s.xs.append(x)", "s = S()\nxs = s.xs\ns.add(1)\nassert xs == [1]", "copy"),
    "suppressed exception": ("from contextlib import suppress\ndef g(): return suppress(ValueError)\ndef f(): raise ValueError", "with g():\n    f()", "suppress"),
    "mock passed as an argument": ("def f(client): return client.get('x')['n'] + 1", "from unittest.mock import MagicMock\nm = MagicMock()\nm.get.return_value = {'n': 1}\nassert f(m) == 2\nm.get.assert_called_once_with('x')", "can call functions of the checks"),
    "subclass in the checks": ("class A:\n def f(s): return 1", "class B(A):\n    pass\nassert B().f() == 1", "subclass"),
    "objects compared": ("from dataclasses import dataclass\n@dataclass\nclass P:\n x: int", "assert P(1) == P(1)", "not plain data"),
    "objects added": ("class V:\n def __init__(s, x): s.x = x\n def __add__(s, o): return V(s.x + o.x)", "assert (V(1) + V(2)).x == 3", "not plain data"),
    "isinstance of an own class": ("class A: pass\ndef f(): return A()", "assert isinstance(f(), A)", "not plain data"),
    "type of an own object": ("class A: pass\ndef f(): return A()", "assert type(f()).__name__ == 'A'", "handle"),
    "enum members compared": ("from enum import Enum\nclass C(Enum):\n RED = 1\ndef f(): return C.RED", "assert f() == C.RED", "not plain data"),
    "integer enum compared": ("from enum import IntEnum\nclass C(IntEnum):\n RED = 1\ndef f(): return C.RED", "assert f() == 1", "not plain data"),
    "tuple subclass with operators": ("class V(tuple):\n def __add__(s, o): return V(a + b for a, b in zip(s, o))\ndef f(): return V((1, 2))", "assert f() + f() == (2, 4)", "not plain data"),
    "coroutine in the checks": ("async def f(x): return x", "import asyncio\nasync def main(): return await f(1)\nassert asyncio.run(main()) == 1", "await"),
    "own class of the checks": ("def f(p): return p.x", "class P: x = 1\nassert f(P()) == 1", "cannot cross"),
    "membership of an object": ("class B:\n def __contains__(s, x): return x == 1", "assert 1 in B()", "not plain data"),
    "copied object": ("class A:\n x = 1", "import copy\nassert copy.copy(A()).x == 1", "not plain data"),
    "patched print": ("def f(): print('hello')", "import io, contextlib\nout = io.StringIO()\nwith contextlib.redirect_stdout(out):\n    f()\nassert out.getvalue() == 'hello\\n'", "what a program prints"),
    "sorting program objects in the checks": ("class P:\n def __init__(s, n): s.n = n\n def __lt__(s, o): return s.n < o.n\ndef f(): return [P(2), P(1)]", "assert [p.n for p in sorted(f())] == [1, 2]", "not plain data"),
    "isinstance of a generator": ("def f():\n yield 1", "import types\nassert isinstance(f(), types.GeneratorType)", "handle"),
    "docstring and signature": ("def f(a, b=2):\n '''Adds.'''\n return a + b", "import inspect\nassert f.__doc__ == 'Adds.' and f.__name__ == 'f'\nassert list(inspect.signature(f).parameters) == ['a', 'b']", "handle"),
    "objects in a set": ("class P:\n def __init__(s, x): s.x = x\n def __hash__(s): return hash(s.x)\n def __eq__(s, o): return s.x == o.x\ndef f(xs): return len({P(x) for x in xs})", "assert f([1, 1, 2]) == 2 and len({P(1), P(1)}) == 1", "not plain data"),
    "uuid returned": ("import uuid\ndef f(): return uuid.UUID(int=5)", "import uuid\nassert f() == uuid.UUID(int=5)", "not plain data"),
}  # fmt: skip

UNUSUAL = {  # what few programs do
    "missing file": ("def f(p):\n with open(p) as o: return o.read()", "try:\n    f('nowhere.txt')\n    assert False\nexcept FileNotFoundError as e:\n    assert e.errno == 2 and e.filename == 'nowhere.txt'"),
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
    "fork and pipe": ("""
import os
def f(x):
    r, w = os.pipe()
    if os.fork() == 0:
        os.write(w, str(x * 2).encode()); os._exit(0)
    os.wait()
    return int(os.read(r, 100))
""", "assert f(21) == 42"),
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
    "array": ("import array\ndef f(xs): return array.array('d', xs)",
              "import array\nassert f([1, 2]) == array.array('d', [1.0, 2.0]) and list(f([3])) == [3.0]"),
    "very deep list": ("def f(n):\n x = []\n for _ in range(n): x = [x]\n return x",
                       "x, n = f(50000), 0\nwhile x: x, n = x[0], n + 1\nassert n == 50000"),
    "deep mixture": ("def f(n):\n x = None\n for k in range(n): x = {k: (x,)}\n return x",
                     "x, n = f(300), 0\nwhile x: x, n = next(iter(x.values()))[0], n + 1\nassert n == 300"),
    "raised recursion limit": ("import sys\nsys.setrecursionlimit(20000)\ndef f(n): return 0 if n == 0 else 1 + f(n - 1)",
                               "assert f(9000) == 9000"),
    "recursion error is caught": ("def g(): return g()\ndef f():\n try: g()\n except RecursionError: return 'deep'",
                                  "assert f() == 'deep'"),
    "huge integer": ("def f(n): return 7 ** n", "assert f(20000) == 7 ** 20000"),
    "signed zero and nan": ("def f(): return -0.0, float('nan')",
                            "import math\na, b = f()\nassert math.copysign(1, a) == -1 and b != b"),
    "surrogates": ("def f(s): return s[::-1]", "assert f('a\\ud800') == '\\ud800a'"),
    "callback that calls back": ("def f(g, n): return n if n == 0 else g(f, g, n - 1) + 1",
                                 "assert f(lambda f, g, n: f(g, n), 5) == 5"),
    "exception group": ("def f(): raise ExceptionGroup('g', [ValueError(1)])",
                        "try:\n    f()\n    assert False\nexcept Exception as e:\n    assert 'g' in str(e)"),
    "future annotations": ("from __future__ import annotations\ndef f(x: Nowhere) -> Nothing: return x", "assert f(1) == 1"),
    "stderr and logging": ("import logging, sys, warnings\ndef f():\n logging.warning('a'); print('b', file=sys.stderr)\n"
                           " warnings.warn('c')\n return 1", "assert f() == 1"),
    "redirected output": ("import io, contextlib\ndef f():\n with contextlib.redirect_stdout(io.StringIO()) as o: print('x')\n"
                          " return o.getvalue()", "assert f() == 'x\\n'"),
    "files in the current folder": ("def f():\n with open('a.txt', 'w') as o: o.write('hi')\n return open('a.txt').read()",
                                    "assert f() == 'hi'"),
    "temporary folder": ("import tempfile, os\ndef f():\n with tempfile.TemporaryDirectory() as d:\n"
                         "  p = os.path.join(d, 'x'); open(p, 'w').close()\n  return os.listdir(d)", "assert f() == ['x']"),
    "sqlite": ("import sqlite3\ndef f():\n c = sqlite3.connect(':memory:')\n return c.execute('select 1 + 1').fetchone()",
               "assert f() == (2,)"),
    "pickle of an own class": ("import pickle\nclass A:\n x = 1\ndef f(): return pickle.loads(pickle.dumps(A())).x",
                               "assert f() == 1"),
    "secrets and uuid": ("import secrets, uuid, hashlib\ndef f(): return len(secrets.token_hex(4)), uuid.uuid5(uuid.NAMESPACE_DNS,"
                         " 'a').hex[:4], hashlib.sha256(b'').hexdigest()[:4]", "a, b, c = f()\nassert a == 8 and c == 'e3b0'"),
    "signal handler": ("import signal\ndef f():\n seen = []\n signal.signal(signal.SIGALRM, lambda *a: seen.append(1))\n"
                       " signal.setitimer(signal.ITIMER_REAL, 0.01)\n while not seen: pass\n return len(seen)", "assert f() == 1"),
    "signal to itself": ("import os, signal\ndef f():\n seen = []\n signal.signal(signal.SIGUSR1, lambda *a: seen.append(1))\n"
                         " os.kill(os.getpid(), signal.SIGUSR1)\n return seen", "assert f() == [1]"),
    "socket pair": ("import socket\ndef f():\n a, b = socket.socketpair(); a.send(b'x'); return b.recv(1)", "assert f() == b'x'"),
    "selectors": ("import selectors, os\ndef f():\n r, w = os.pipe(); s = selectors.DefaultSelector()\n"
                  " s.register(r, selectors.EVENT_READ); os.write(w, b'x'); return len(s.select(1))", "assert f() == 1"),
    "mmap": ("import mmap\ndef f():\n m = mmap.mmap(-1, 4096); m[:2] = b'ab'; return bytes(m[:2])", "assert f() == b'ab'"),
    "ctypes": ("import ctypes\ndef f(): return ctypes.c_uint8(300).value", "assert f() == 44"),
    "frames": ("import inspect\ndef f(): return inspect.currentframe().f_code.co_name, len(inspect.signature(f).parameters)",
               "assert f() == ('f', 0)"),
    "standard input is empty": ("import sys\ndef f(): return sys.stdin.read()", "assert f() == ''"),
    "many small calls": ("def f(x): return x + 1", "assert sum(f(n) for n in range(3000)) == 4501500"),
    "large result": ("def f(n): return list(range(n))", "assert len(f(200000)) == 200000"),
}  # fmt: skip

REFUSED = {
    "third-party module": ("import numpy as np\ndef f(): return 1", "assert f() == 1", "only Python's standard library"),
    "subprocess": ("import subprocess\ndef f(): return subprocess.run(['echo'])", "f()", "in the sandbox"),
    "internet": ("import socket\ndef f(): return socket.create_connection(('1.1.1.1', 80), 1)", "f()", "in the sandbox"),
    "name lookup": ("import socket\ndef f(): return socket.gethostbyname('localhost')", "f()", "in the sandbox"),
    "file of the system": ("def f(): return open('/etc/passwd').read()", "f()", "in the sandbox"),
    "file outside": ("def f(): open('/home/x', 'w')", "f()", "in the sandbox"),
    "two hundred threads": ("import threading, time\ndef f(n):\n ts = [threading.Thread(target=time.sleep, args=(1,)) for _ in range(n)]\n"
                            " [t.start() for t in ts]; [t.join() for t in ts]\n return n", "assert f(200) == 200", "in the sandbox"),
    "many descriptors": ("def f(): return len([open('/dev/null') for _ in range(500)])", "assert f() == 500", "in the sandbox"),
    "large file": ("def f(): return open('x', 'wb').write(bytes(64 << 20))", "assert f() == 64 << 20", "in the sandbox"),
    "much memory": ("def f(): return len(bytearray(3 << 30))", "assert f() == 3 << 30", "in the sandbox"),
    "very deep tuple": ("def f(n):\n x = ()\n for _ in range(n): x = (x,)\n return x", "f(50000)", "nested"),
    "very large result": ("def f(n): return 'x' * n", "f(50 << 20)", "at most"),
}  # fmt: skip
SEVERAL_PROCESSES = ("multiprocessing pool", "fork and pipe")


@pytest.fixture(scope="module")
def weak_sandbox(all_layers):
    with Sandbox(weak=True, limits=SandboxLimits(seconds=60)) as made:
        yield made


@pytest.mark.parametrize("name", [*EVERYDAY, *SAID])
def test_everyday_programs_are_correct(name):
    program, checks, *_ = {**EVERYDAY, **SAID}[name]
    exec(f"{program}\n{checks}", {"__name__": "candidate"})


@pytest.mark.parametrize("name", [*EVERYDAY, *UNUSUAL])
def test_a_correct_program_passes(name, sandbox):
    verdict = sandbox.run(*{**EVERYDAY, **UNUSUAL}[name])
    if name in SEVERAL_PROCESSES:
        assert "further processes" in verdict.detail
    else:
        assert verdict.passed, verdict


@pytest.mark.parametrize("name", [*SAID, *REFUSED])
def test_a_verdict_says_what_the_sandbox_does_not_support(name, sandbox):
    program, checks, words = {**SAID, **REFUSED}[name]
    verdict = sandbox.run(program, checks)
    assert not verdict.passed
    assert words in verdict.detail, verdict
    assert verdict.detail.isprintable()


def test_in_weak_mode_correct_programs_pass_or_the_verdict_says_why(weak_sandbox):
    programs = {**EVERYDAY, **UNUSUAL}
    verdicts = dict(zip(programs, weak_sandbox.map(programs.values()), strict=True))
    refused = {name: verdict.detail for name, verdict in verdicts.items() if not verdict.passed}
    assert {name: detail for name, detail in refused.items() if "in the sandbox" not in detail} == {}
    assert refused.keys().isdisjoint(EVERYDAY)
    assert len(refused) < 15
    for name, (program, checks, words) in SAID.items():
        assert words in weak_sandbox.run(program, checks).detail, name


ELSEWHERE = """
import os, sys
from voidpad.sandbox import kernel
kernel.unshare(kernel.NEWNS)
kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
held = os.open(sys.base_prefix, os.O_PATH)
kernel.mount("tmpfs", "/tmp", "tmpfs", data="mode=1777")
place = sys.argv[2]
os.makedirs(place)
kernel.mount(f"/proc/self/fd/{held}", place, flags=kernel.MS_BIND | kernel.MS_REC)
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
