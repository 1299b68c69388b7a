"""The checks' side of an object that lives in the program's process."""

from collections.abc import Callable
from typing import Any, Protocol


class StopChecks(BaseException):
    """Ends the checks, which seldom catch a BaseException; carries the verdict's reason and detail."""


class ObjectOwner(Protocol):
    """What a RemoteObject needs of the connection to the program."""

    lenient: bool

    def ask(self, verb: str, *args: object, **named: object) -> Any: ...

    def give_up(self, reason: str, detail: str) -> StopChecks: ...


class RemoteObject:
    """Stands for an object that is not plain data. It can be called, read and iterated, but not compared.

    Calls, attributes, items and lengths are requested from the program: the answer is plain data or another
    RemoteObject. Operators that would pass the expected value to the program's own methods (==, <, -, in) end the
    checks, unless the sandbox was created with `trust_objects`.
    """

    __slots__ = ("__label", "__owner")

    def __init__(self, owner: ObjectOwner, label: str) -> None:
        object.__setattr__(self, "_RemoteObject__owner", owner)
        object.__setattr__(self, "_RemoteObject__label", label)

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
        iterator = self.__owner.ask("iter", self)
        return iterator if type(iterator) is RemoteObject else iter(iterator)

    def __next__(self) -> Any:
        return self.__owner.ask("next", self)

    def __len__(self) -> int:
        length: int = self.__plain("len", int)
        return length

    def __bool__(self) -> bool:
        truth: bool = self.__plain("bool", bool)
        return truth

    def __str__(self) -> str:
        text: str = self.__plain("str", str)
        return text

    def __repr__(self) -> str:
        text: str = self.__plain("repr", str)
        return text

    def __hash__(self) -> int:
        return id(self)

    def __reduce_ex__(self, protocol: object) -> Any:
        raise self.__owner.give_up("opaque", f"the checks copy a {self.__label}, which is not plain data")

    def __plain(self, verb: str, kind: type) -> Any:
        value = self.__owner.ask(verb, self)
        if type(value) is not kind:
            raise TypeError(f"{verb}() of the program's {self.__label} gave a {type(value).__name__}")
        return value

    def __operate(self, name: str, *args: object) -> Any:
        if self.__owner.lenient:
            return self.__owner.ask("operate", self, name, *args)
        raise self.__owner.give_up(
            "opaque",
            f"the checks compare a {self.__label}, which is not plain data; "
            "Sandbox(trust_objects=True) lets the program's own methods answer",
        )


def _operator(name: str) -> Callable[..., Any]:
    def method(self: RemoteObject, *args: object) -> Any:
        return self._RemoteObject__operate(name, *args)

    return method


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul", "and", "or",
               "xor", "lshift", "rshift")  # fmt: skip
_OTHERS = ("eq", "ne", "lt", "le", "gt", "ge", "contains", "neg", "abs", "round", "int", "float", "index",
           "instancecheck", "subclasscheck")  # fmt: skip
for _name in (*_OTHERS, *_ARITHMETIC, *(f"r{name}" for name in _ARITHMETIC)):
    setattr(RemoteObject, f"__{_name}__", _operator(f"__{_name}__"))
