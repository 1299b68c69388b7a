"""An object of the program, as the checks hold it."""

from collections.abc import Callable
from typing import Any, Protocol


class Abort(BaseException):
    """Ends the checks, whatever they catch; carries the verdict's reason and detail."""


class Owner(Protocol):
    """Whoever speaks to the program for the checks."""

    lenient: bool

    def ask(self, verb: str, *args: object, **named: object) -> Any: ...

    def give_up(self, reason: str, detail: str) -> Abort: ...


class Remote:
    """Not plain data: it can be called, read and walked, but not compared.

    What carries no expected value (a call, an attribute, an item, a length) is asked of the program, because
    the answer is plain data or another Remote. What would let the object meet the expected value in the
    program's own code (==, <, -, in) is refused unless the caller opted in.
    """

    __slots__ = ("__label", "__owner")

    def __init__(self, owner: Owner, label: str) -> None:
        object.__setattr__(self, "_Remote__owner", owner)
        object.__setattr__(self, "_Remote__label", label)

    def __call__(self, *args: object, **named: object) -> Any:
        return self.__owner.ask("call", self, *args, **named)

    def __getattr__(self, name: str) -> Any:
        return self.__owner.ask("getattr", self, name)

    def __setattr__(self, name: str, value: object) -> None:
        self.__owner.ask("setattr", self, name, value)

    def __getitem__(self, key: object) -> Any:
        return self.__owner.ask("getitem", self, key)

    def __setitem__(self, key: object, value: object) -> None:
        self.__owner.ask("setitem", self, key, value)

    def __iter__(self) -> Any:
        walked = self.__owner.ask("iter", self)
        return walked if type(walked) is Remote else iter(walked)

    def __next__(self) -> Any:
        return self.__owner.ask("next", self)

    def __len__(self) -> int:
        return self.__plain("len", int)

    def __bool__(self) -> bool:
        return self.__plain("bool", bool)

    def __str__(self) -> str:
        return self.__plain("str", str)

    def __repr__(self) -> str:
        return self.__plain("repr", str)

    def __hash__(self) -> int:
        return id(self)

    def __reduce_ex__(self, protocol: object) -> Any:
        raise self.__owner.give_up("opaque", f"the checks copy a {self.__label}, which is not plain data")

    def __plain(self, verb: str, kind: type) -> Any:
        value = self.__owner.ask(verb, self)
        if type(value) is not kind:
            raise TypeError(f"{verb}() of the program's {self.__label} gave a {type(value).__name__}")
        return value

    def __meet(self, name: str, *args: object) -> Any:
        if self.__owner.lenient:
            return self.__owner.ask("operate", self, name, *args)
        raise self.__owner.give_up(
            "opaque",
            f"the checks compare a {self.__label}, which is not plain data; "
            "Sandbox(trust_objects=True) lets the program's own methods answer",
        )


def _meeting(name: str) -> Callable[..., Any]:
    def method(self: Remote, *args: object) -> Any:
        return self._Remote__meet(name, *args)  # type: ignore[attr-defined]

    return method


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul", "and", "or",
               "xor", "lshift", "rshift")  # fmt: skip
_OTHERS = ("eq", "ne", "lt", "le", "gt", "ge", "contains", "neg", "abs", "round", "int", "float", "index",
           "instancecheck", "subclasscheck")  # fmt: skip
for _name in (*_OTHERS, *_ARITHMETIC, *(f"r{name}" for name in _ARITHMETIC)):
    setattr(Remote, f"__{_name}__", _meeting(f"__{_name}__"))
