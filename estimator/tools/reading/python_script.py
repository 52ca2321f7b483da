"""A Python script or a notebook, read by ``ast``: the calls that configure a run, with what their arguments are.

Nothing is imported or run. An argument is followed through names, literals, dicts, f-strings of known names, simple
arithmetic, and the defaults of argparse and of the script's own dataclasses; what cannot be known so is said to be.
Of branches whose test only the run knows, what they agree on is known.
"""

from __future__ import annotations

import ast
import json
import operator
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from estimator.tools.lists import listed
from estimator.tools.parsed import Call, FlagValue, Text, Unresolved, flattened
from estimator.values.objective import OBJECTIVES
from estimator.values.refusals import InputError

OF_TRL = (
    *(objective.trl.name for objective in OBJECTIVES.values() if objective.trl),
    *listed("PPO PRM BCO OnlineDPO XPO NashMD GKD"),
)
"""How the names of TRL's trainers and of their arguments begin."""
OF_PEFT = listed(
    """AdaLora IA3 LoHa LoKr OFT BOFT Vera PrefixTuning PromptTuning PromptEncoder FourierFT LNTuning"""
)
"""The same of PEFT's adapters beside LoRA."""
OF_TRAINER = frozenset(listed("TrainingArguments Seq2SeqTrainingArguments"))
CONFIGS = OF_TRAINER | frozenset(
    [
        *(f"{name}Config" for name in (*OF_TRL, *OF_PEFT, "Model", "Lora", "BitsAndBytes")),
        "DistributedConfig",
        *listed("UnslothTrainingArguments ScriptArguments DPOScriptArguments GRPOScriptArguments"),
    ]
)
"""Classes whose arguments are keys of a run."""
TRAINERS = frozenset(f"{name}Trainer" for name in (*OF_TRL, "", "Seq2Seq", "Unsloth"))
METHODS = frozenset(
    listed("""from_pretrained tokenizer get_peft_model prepare_model_for_kbit_training gradient_checkpointing_enable to
    half bfloat16""")
)
LOADERS = re.compile(
    r"^(Auto(Liger|Peft)?Model\w*|Fast\w*Model|\w+For(CausalLM|ConditionalGeneration|ImageTextToText|SequenceClassification)|\w+LMHeadModel)$"
)
PROCESSORS = re.compile(r"^\w*Processor$")
PARSERS = {"HfArgumentParser", "TrlParser", "H4ArgumentParser"}
HAS_BF16 = {"is_bfloat16_supported", "is_bf16_supported", "is_torch_bf16_gpu_available"}
"""Questions about the card: answered yes, as every card since 2020 does."""
ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
PLAIN_ARGUMENTS = (ast.Constant, ast.Name, ast.Attribute, ast.UnaryOp, ast.BinOp, ast.JoinedStr)
"""Arguments that may be read twice: they make nothing."""
ORDER: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
PARSES = frozenset({"parse", "parse_dict", "parse_yaml_file", "parse_json_file"})
LOOKUPS = frozenset(
    [("os.environ", "get"), ("environ", "get"), ("os", "getenv"), ("", "getenv")],
)
BASE = "__base__"
"""Where a class of the script keeps the name of the known class that it extends."""
NO_FLAGS: Mapping[str, Any] = MappingProxyType({})
LARGEST_RESULT = 10**15
LONGEST_RESULT = 10_000


@dataclass
class _Object:
    """A value that has named parts: what a known class was called with, or a parser returned."""

    name: str
    values: dict[str, Any]
    line: int
    of: str = ""
    lines: dict[str, int] = field(default_factory=dict)
    target: str = ""
    is_parsed: bool = False
    """What a parser of flags returned."""
    condition: str = ""
    """A test that only the run knows, without which it is not made."""


@dataclass(frozen=True, slots=True)
class _Called:
    """A call, and what its arguments are."""

    name: str
    """The last part of what is called."""
    owner: str
    """What stands before it."""
    on: Any
    """What it is called on, where that is itself a call's result."""
    positional: list[Any]
    keywords: dict[str, Any]
    lines: dict[str, int]
    """Of each keyword."""
    node: ast.Call

    @property
    def first(self) -> Any:
        """The first positional argument; None without one."""
        return self.positional[0] if self.positional else None

    @property
    def unknown(self) -> Unresolved:
        """The call itself, where only the run knows what it returns."""
        return Unresolved(ast.unparse(self.node)[:200])


MISSING = object()
"""What a name that nobody gave a value has."""


_After = dict[tuple[int, str], tuple[dict[str, Any], Any]]
"""What a branch has written: by the identity of a dict and a key of it, the dict and the value there."""


def _paired(
    branches: list[list[_Object]], returns: list[bool], test: str
) -> tuple[dict[int, _Object], list[_Object]]:
    """Objects that each branch makes of its own become one; by id of each, and all that are left."""
    pairs: dict[int, _Object] = {}
    left: list[_Object] = []
    queues: list[dict[tuple[str, str], list[_Object]]] = []
    for objects in branches:
        queues.append({})
        for made in objects:
            queues[-1].setdefault((made.name, made.of), []).append(made)
    for kind in dict.fromkeys(chain.from_iterable(queues)):
        alike = [queue.get(kind, []) for queue in queues]
        number = min(map(len, alike)) if len(alike) > 1 else 0
        for several in zip(*(objects[:number] for objects in alike), strict=True):
            one = _joined(several, pairs, test)
            pairs |= dict.fromkeys(map(id, several), one)
            left.append(one)
        for branch, rest in enumerate(alike):
            others = [
                pair
                for other, pair in enumerate(zip(alike, returns, strict=True))
                if other != branch
            ]
            if any(objects or not ends for objects, ends in others):  # else the others are no runs
                for made in rest[number:]:
                    made.condition = made.condition or test
            left += rest[number:]
    return pairs, sorted(left, key=attrgetter("line"))


def _joined(several: tuple[_Object, ...], pairs: Mapping[int, _Object], test: str) -> _Object:
    keys = dict.fromkeys(chain.from_iterable(made.values for made in several))
    values = {
        key: _either([made.values.get(key, MISSING) for made in several], pairs, test)
        for key in keys
    }
    lines = {key: line for made in several for key, line in made.lines.items()}
    condition = next(filter(None, map(attrgetter("condition"), several)), "")
    return replace(several[0], values=values, lines=lines, condition=condition)


def _either(
    values: list[Any], pairs: Mapping[int, _Object], test: str, *, is_name: bool = False
) -> Any:
    """The one value that all branches give, or a value that only the run knows."""
    values = [pairs.get(id(value), value) for value in values]
    if is_name:  # who uses a name has run the branch that gives it
        values = [value for value in values if value is not MISSING]
    if all(value is values[0] or value == values[0] for value in values):
        return values[0]
    for value in values:
        if isinstance(value, _Object) and not value.condition:
            value.condition = test
    flags = {value.flag for value in values if isinstance(value, FlagValue)}
    if len(flags) == 1 and all(isinstance(value, FlagValue) for value in values):
        return values[0]
    return Unresolved(" or ".join(dict.fromkeys(map(_said, values)))[:200])


def _said(value: Any) -> str:
    if isinstance(value, Unresolved):
        return value.text
    if isinstance(value, _Object):
        return value.target or value.name
    return "none" if value is MISSING or value is None else str(value)


def read_python(text: str, name: str, flags: Mapping[str, Any] = NO_FLAGS) -> Text:
    r"""The calls of a script; ``flags`` are what its command line gives it.

    >>> (call,) = read_python("n = 2\nargs = SFTConfig(max_length=n * 1024)\n", "train.py").calls
    >>> call.name, call.target, [(argument.name, argument.value) for argument in call.found]
    ('SFTConfig', 'args', [('max_length', 2048)])
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in somebody's text
            tree = ast.parse(text)
    except SyntaxError as problem:
        here = (problem.text or "").strip()[:60]
        at = f" at {here!r}" if here else ""
        raise InputError(
            f"{name}, line {problem.lineno}: no Python{at} ({problem.msg}); correct it there."
        ) from None
    except (ValueError, RecursionError, MemoryError):
        raise InputError(
            f"{name} is nested too deeply to be read; give the config alone."
        ) from None
    reader = _Reader(flags)
    try:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                reader.sites.setdefault(node.func.id, []).append(node)
        reader.walk(tree.body)
    except RecursionError:
        raise InputError(
            f"{name} is nested too deeply to be read; give the config alone."
        ) from None
    return Text(
        name=name,
        kind="python",
        calls=tuple(reader.calls()),
        options=frozenset(reader.options),
        guesses=tuple(reader.assumed),
        environment={
            key: value for key, value in reader.environment.items() if isinstance(value, str)
        },
        called=frozenset(filter(None, map(_last_name, ast.walk(tree)))),
    )


def read_notebook(text: str, name: str) -> Text:
    """The calls of a notebook's cells; magics are left out."""
    try:
        cells = json.loads(text)["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (json.JSONDecodeError, KeyError, TypeError, RecursionError):
        raise InputError(
            f"{name} is no notebook: it has no cells; save it as .ipynb again."
        ) from None
    kept = []
    for source in sources:
        lines = source.split("\n")
        plain = "\n".join(
            (line[: len(line) - len(line.lstrip())] + "pass  # " + line.lstrip())
            if line.lstrip().startswith(("%", "!"))
            else line
            for line in lines
        )
        try:
            ast.parse(plain)
        except (SyntaxError, ValueError):
            if not source.lstrip().startswith(("%", "!")) and any(
                word in plain for word in CONFIGS
            ):
                return read_python(plain, f"{name}, a cell")
            plain = "\n".join(f"# {line}" for line in lines)  # %%bash and the like
        kept.append(plain)
    return read_python("\n".join(kept), name)


ENVIRON = frozenset({"os.environ", "environ"})


class _Reader:
    """Walks statements in order; every name has the last value that was given to it."""

    def __init__(self, flags: Mapping[str, Any]) -> None:
        self.flags = flags
        self.names: dict[str, Any] = {}
        self.objects: list[_Object] = []
        self.classes: dict[str, dict[str, Any]] = {}
        self.options: dict[str, Any] = {}
        self.writes: list[tuple[dict[str, Any], str, Any]] = []
        """Each assignment: where, what, and the value before."""
        self.sites: dict[str, list[ast.Call]] = {}
        """Where each name is called."""
        self.environment: dict[str, Any] = {}
        """What the script sets in ``os.environ``."""
        self.assumed: dict[str, None] = {}
        """What is taken of the card, one sentence each."""

    def calls(self) -> list[Call]:
        """What was called with what, as it stands at the end."""
        return [
            Call(
                name=made.name,
                of=made.of,
                line=made.line,
                target=made.target,
                condition=made.condition,
                found=tuple(
                    one
                    for key, value in made.values.items()
                    for one in flattened(
                        _plain(value), made.lines.get(key, made.line), tuple(key.split("."))
                    )
                ),
            )
            for made in self.objects
        ]

    # --- statements ---

    def walk(self, body: list[ast.stmt]) -> None:
        """Statements, into functions, branches and loops too; what follows a branch that returns is another branch."""
        for number, node in enumerate(body):
            if isinstance(node, ast.If) and _returns(node.body) and self.truth(node.test) is None:
                rest = [*node.orelse, *body[number + 1 :]]
                self.branches([node.body, rest], ast.unparse(node.test)[:60])
                return
            self.statement(node)

    def truth(self, test: ast.expr) -> bool | None:
        """Whether a test is true; None if only the run knows."""
        found = self.value(test)
        return None if isinstance(found, Unresolved) else bool(found)

    def set(self, container: dict[str, Any], key: str, value: Any) -> None:
        """A name or a part gets a value, which can be taken back."""
        self.writes.append((container, key, container.get(key, MISSING)))
        container[key] = value

    def branches(self, bodies: list[list[ast.stmt]], test: str) -> None:
        """Statements of which only one list runs, and only the run knows which: what they agree on is known.

        A branch that raises is no run. One that returns leaves its objects, and its names to nobody.
        """
        taken = [body for body in bodies if not _raises(body)]
        outcomes = [*map(self.branch, taken)]
        returns = [*map(_returns, taken)]
        pairs, made = _paired([objects for _, objects in outcomes], returns, test)
        follows = [after for (after, _), ends in zip(outcomes, returns, strict=True) if not ends]
        places = {place: of for after in follows for place, (of, _) in after.items()}
        for place, of in places.items():
            now = (of, of.get(place[1], MISSING))
            values = [after.get(place, now)[1] for after in follows]
            self.set(of, place[1], _either(values, pairs, test, is_name=of is self.names))
        self.objects += made

    def branch(self, body: list[ast.stmt]) -> tuple[_After, list[_Object]]:
        """What statements have written and made; everything is as before again."""
        first, mark = len(self.objects), len(self.writes)
        self.walk(body)
        writes = self.writes[mark:]
        after = {(id(of), key): (of, of.get(key, MISSING)) for of, key, _ in writes}
        for of, key, before in reversed(writes):
            if before is MISSING:
                of.pop(key, None)
            else:
                of[key] = before
        made = self.objects[first:]
        del self.writes[mark:], self.objects[first:]
        return after, made

    def statement(self, node: ast.stmt) -> None:
        """One statement."""
        match node:
            case ast.Assign(targets=targets, value=value):
                found = self.value(value)
                for target in targets:
                    self.assign(target, found)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.assign(target, self.value(value))
            case ast.AugAssign(target=ast.Name(id=name)):
                sum_of = ast.BinOp(ast.Name(id=name, ctx=ast.Load()), node.op, node.value)
                self.set(self.names, name, self.value(ast.fix_missing_locations(sum_of)))
            case ast.Expr(value=value):
                self.value(value)
            case ast.Return(value=ast.expr() as value):
                self.value(value)
            case ast.If(test=test, body=body, orelse=orelse):
                known = True if _is_main(test) else self.truth(test)
                if known is None:
                    self.branches([body, orelse], ast.unparse(test)[:60])
                else:
                    self.walk(body if known else orelse)
            case ast.Match(subject=subject, cases=cases):
                bodies = [branch.body for branch in cases]
                is_any = any(
                    isinstance(branch.pattern, ast.MatchAs) and not branch.pattern.pattern
                    for branch in cases
                )
                self.branches(bodies if is_any else [*bodies, []], ast.unparse(subject)[:60])
            case ast.FunctionDef(body=body) | ast.AsyncFunctionDef(body=body):
                self.parameters(node)
                self.walk(body)
            case ast.ClassDef():
                self.dataclass(node)
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef):
                        self.walk(inner.body)
            case ast.For(body=body, orelse=orelse) | ast.While(body=body, orelse=orelse):
                if isinstance(node, ast.For):
                    self.assign(node.target, Unresolved(ast.unparse(node.target)))
                self.walk(body)
                self.walk(orelse)
            case ast.With(body=body) | ast.AsyncWith(body=body):
                self.walk(body)
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=finalbody):
                if any(isinstance(line, ast.Import | ast.ImportFrom) for line in body):
                    others = [handler.body for handler in handlers]
                    self.branches([[*body, *orelse], *others], "it is installed")
                else:  # the handlers are for what should not happen
                    self.walk([*body, *orelse])
                self.walk(finalbody)
            case _:
                pass

    def parameters(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """A function's parameters have their defaults, which ``fire`` and ``typer`` make the script's."""
        given, by_name = [*node.args.posonlyargs, *node.args.args], node.args.kwonlyargs
        late = given[len(given) - len(node.args.defaults) :]
        defaults = zip(
            [*late, *by_name], [*node.args.defaults, *node.args.kw_defaults], strict=True
        )
        known = {parameter.arg: value for parameter, value in defaults if value is not None}
        for place, parameter in enumerate([*given, *by_name]):
            name = parameter.arg
            found = self.passed(node.name, name, place if place < len(given) else None, known)
            if found is MISSING and name in known:
                found = self.value(known[name])
                found = Unresolved(name) if found is None else found
            elif found is MISSING:
                found = self.names.get(name, Unresolved(name))
            self.set(self.names, name, found)

    def passed(
        self, function: str, name: str, place: int | None, defaults: Mapping[str, ast.expr]
    ) -> Any:
        """What all calls of a function give an argument; ``MISSING`` where none does, or only a call's result."""
        values = []
        for call in self.sites.get(function, []):
            given = {keyword.arg: keyword.value for keyword in call.keywords}
            if None in given or any(isinstance(argument, ast.Starred) for argument in call.args):
                return MISSING
            by_place = place is not None and place < len(call.args)
            value = call.args[place or 0] if by_place else given.get(name, defaults.get(name))
            if not isinstance(value, PLAIN_ARGUMENTS):
                return MISSING
            values.append(self.value(value))
        if not values or (
            name not in defaults and any(isinstance(value, Unresolved) for value in values)
        ):
            return MISSING
        return _either(values, {}, f"{function} is called so")

    def dataclass(self, node: ast.ClassDef) -> None:
        """The fields of a class with their defaults."""
        fields = {}
        for statement in node.body:
            match statement:
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    fields[name] = self.field(value)
                case ast.Assign(targets=targets, value=value):
                    named = [target.id for target in targets if isinstance(target, ast.Name)]
                    fields |= dict.fromkeys(named, self.value(value))
        bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
        inherited = {
            key: value for base in bases for key, value in self.classes.get(base, {}).items()
        }
        self.classes[node.name] = {**inherited, **fields}
        if any(base in CONFIGS for base in bases):
            self.classes[node.name][BASE] = next(base for base in bases if base in CONFIGS)
        self.names.setdefault(node.name, _Object(node.name, dict(fields), node.lineno))

    def field(self, node: ast.expr) -> Any:
        """The default of a dataclass's field."""
        if _last_name(node) in {"field", "Field"} and isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg == "default":
                    return self.value(keyword.value)
                if keyword.arg == "default_factory" and isinstance(keyword.value, ast.Lambda):
                    return self.value(keyword.value.body)
            return Unresolved("a field without a default")
        return self.value(node)

    def assign(self, target: ast.expr, value: Any) -> None:
        """A value gets a name, or becomes a part of an object."""
        match target:
            case ast.Name(id=name):
                self.set(self.names, name, value)
                if isinstance(value, _Object) and not value.target:
                    value.target = name
            case ast.Attribute(value=owner, attr=part):
                of = self.value(owner)
                if isinstance(of, _Object):
                    self.set(of.values, part, value)
                    of.lines[part] = target.lineno
            case ast.Subscript(value=owner, slice=ast.Constant(value=str(part))):
                of = self.environment if ast.unparse(owner) in ENVIRON else self.value(owner)
                if isinstance(of, dict):
                    self.set(of, part, value)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                several = value if isinstance(value, list) and len(value) == len(parts) else None
                for number, one in enumerate(parts):
                    if several is not None:
                        self.assign(one, several[number])
                    elif number == 0 and isinstance(value, _Object):
                        self.assign(one, value)
                    elif isinstance(one, ast.Name):
                        self.set(self.names, one.id, Unresolved(one.id))
            case _:
                pass

    # --- expressions ---

    def value(self, node: ast.expr) -> Any:
        """What an expression is, or why it is not known."""
        match node:
            case ast.Constant(value=value):
                return value if not isinstance(value, bytes | complex) else Unresolved(repr(value))
            case ast.Name(id=name):
                return self.names.get(name, Unresolved(name))
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                found: list[Any] = []
                for element in parts:
                    if isinstance(element, ast.Starred):
                        inner = self.value(element.value)
                        found += inner if isinstance(inner, list) else [inner]
                    else:
                        found.append(self.value(element))
                return found
            case ast.Dict(keys=keys, values=values):
                return self.pairs(keys, values)
            case ast.JoinedStr(values=parts):
                return self.joined(parts, node)
            case ast.BinOp(left=left, op=op, right=right):
                return self.arithmetic(self.value(left), op, self.value(right), node)
            case ast.UnaryOp(op=op, operand=operand):
                inner = self.value(operand)
                if isinstance(op, ast.Not) and not isinstance(inner, Unresolved):
                    return not inner
                if isinstance(op, ast.USub) and isinstance(inner, int | float):
                    return -inner
                return Unresolved(ast.unparse(node))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                known = self.truth(test)
                if known is not None:
                    return self.value(body if known else orelse)
                either = (self.value(body), self.value(orelse))
                if either[0] == either[1]:
                    return either[0]
                flags = (branch for branch in either if isinstance(branch, FlagValue))
                return next(flags, Unresolved(ast.unparse(node)[:200]))
            case ast.BoolOp(op=op, values=parts):
                return self.junction(op, [*map(self.value, parts)], node)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self.comparison(self.value(left), op, self.value(right), node)
            case ast.Attribute(value=owner, attr=part):
                return self.part(owner, part, node)
            case ast.Subscript(value=owner, slice=index):
                of, at = self.value(owner), self.value(index)
                if isinstance(of, dict) and isinstance(at, str) and at in of:
                    return of[at]
                if isinstance(of, list) and isinstance(at, int) and -len(of) <= at < len(of):
                    return of[at]
                return Unresolved(ast.unparse(node))
            case ast.Call():
                return self.call(node)
            case ast.Await(value=inner) | ast.NamedExpr(value=inner):
                return self.value(inner)
            case _:
                return Unresolved(ast.unparse(node)[:200])

    def pairs(self, keys: list[ast.expr | None], values: list[ast.expr]) -> dict[str, Any]:
        """A dict, with those that it unpacks."""
        found: dict[str, Any] = {}
        for key, value in zip(keys, values, strict=True):
            inner = self.value(value)
            if key is None:
                found |= inner if isinstance(inner, dict) else {}
            else:
                found[str(_plain(self.value(key)))] = inner
        return found

    def joined(self, parts: list[ast.expr], node: ast.expr) -> Any:
        """An f-string of known names."""
        text = ""
        for part in parts:
            inner = (
                self.value(part.value) if isinstance(part, ast.FormattedValue) else self.value(part)
            )
            if not isinstance(inner, str | int | float):
                return Unresolved(ast.unparse(node))
            text += str(inner)
            if len(text) > LONGEST_RESULT:
                return Unresolved(ast.unparse(node)[:200])
        return text

    def arithmetic(self, left: Any, op: ast.operator, right: Any, node: ast.expr) -> Any:
        """Sums, products and the like of small numbers, and joined texts."""
        both, unknown = (left, right), Unresolved(ast.unparse(node)[:200])
        if all(type(operand) in (int, float) for operand in both) and type(op) in ARITHMETIC:
            is_large = isinstance(op, ast.Pow) and abs(right) > 64
            if is_large or max(map(abs, both)) > LARGEST_RESULT:
                return unknown
            try:
                found = ARITHMETIC[type(op)](left, right)
            except (ArithmeticError, ValueError, TypeError):
                return unknown
            return unknown if isinstance(found, complex) or abs(found) > LARGEST_RESULT else found
        joins = any(all(isinstance(operand, kind) for operand in both) for kind in (str, list))
        if isinstance(op, ast.Add) and joins and len(left) + len(right) <= LONGEST_RESULT:
            return left + right
        return unknown

    def junction(self, op: ast.boolop, parts: list[Any], node: ast.expr) -> Any:
        """``and`` and ``or`` of known values."""
        for part in parts:
            if isinstance(part, Unresolved):
                return part if isinstance(part, FlagValue) else Unresolved(ast.unparse(node)[:200])
            if bool(part) is isinstance(op, ast.Or):
                return part
        return parts[-1]

    def comparison(self, left: Any, op: ast.cmpop, right: Any, node: ast.expr) -> Any:
        """Equal, in, or not, of known values."""
        if isinstance(left, Unresolved | _Object) or isinstance(right, Unresolved | _Object):
            return Unresolved(ast.unparse(node))
        match op:
            case ast.Is() | ast.IsNot() if right is None:
                return (left is None) is isinstance(op, ast.Is)
            case ast.Eq() | ast.NotEq():
                return (left == right) is isinstance(op, ast.Eq)
            case ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE() if _are_numbers(left, right):
                return ORDER[type(op)](left, right)
            case ast.In() if isinstance(right, list | dict | str):
                return str(left) in right if isinstance(right, str) else left in right
        return Unresolved(ast.unparse(node))

    def part(self, owner: ast.expr, part: str, node: ast.expr) -> Any:
        """``torch.bfloat16`` is its own text; ``config.size`` a part of a known object."""
        text = ast.unparse(node)
        if re.fullmatch(r"torch\.\w+", text):
            return text
        of = self.value(owner)
        if isinstance(of, _Object) and part in of.values:
            return of.values[part]
        if isinstance(of, _Object) and of.is_parsed:
            return self.flags.get(part, FlagValue(text[:200], part))
        if isinstance(of, dict) and part in of:
            return of[part]
        return Unresolved(text[:200])

    # --- calls ---

    def call(self, node: ast.Call) -> Any:
        """A call: of what makes a config, of a parser, or of a few plain functions; else not known."""
        called = self.called(node)
        name = called.name
        if name in HAS_BF16:
            self.assumed[f"The card is taken to have bfloat16 ({name})."] = None
            return True
        if name == "get_device_capability":
            self.assumed[f"The card is taken as Ampere or newer ({name})."] = None
            return [8, 0]
        if name == "is_available" and called.owner.rpartition(".")[2] == "cuda":
            return True
        is_config = name in CONFIGS or name in TRAINERS or self.base_of(name) in CONFIGS
        if is_config or (name in METHODS and self.counts(called)):
            return self.made(called)
        if name in self.classes:
            return _Object(name, {**self.classes[name], **called.keywords}, node.lineno)
        for read in (_built, self.changed, self.looked_up, self.argparsed, self.parsed_classes):
            if (found := read(called)) is not MISSING:
                return found
        return called.unknown

    def called(self, node: ast.Call) -> _Called:
        """What is called, and what its arguments are."""
        owner, _, name = ast.unparse(node.func).rpartition(".")
        on = self.chained(node.func)
        positional = [
            self.value(argument) for argument in node.args if not isinstance(argument, ast.Starred)
        ]
        keywords: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for keyword in node.keywords:
            inner = self.value(keyword.value)
            if keyword.arg is not None:
                keywords[keyword.arg] = inner
                lines[keyword.arg] = keyword.value.lineno
            elif isinstance(inner, dict):
                keywords = {**inner, **keywords}
            elif name in CONFIGS or (name == "from_pretrained" and LOADERS.match(owner)):
                said = f"**{ast.unparse(keyword.value)[:60]}"
                self.assumed[f"{said} of {name}, which only the run knows, is taken as empty."] = (
                    None
                )
        return _Called(name, owner, on, positional, keywords, lines, node)

    def chained(self, func: ast.expr) -> Any:
        """What a method is called on, where that is itself a call's result: ``SFTTrainer(…).train()``."""
        if not isinstance(func, ast.Attribute):
            return None
        inner: ast.expr = func.value
        while isinstance(inner, ast.Attribute | ast.Subscript):
            inner = inner.value
        is_made = isinstance(inner, ast.Call | ast.NamedExpr | ast.Await)
        return self.value(func.value) if is_made else None

    def base_of(self, name: str) -> str:
        """The known class that one of the script's own extends."""
        return str(self.classes.get(name, {}).get(BASE, ""))

    def counts(self, called: _Called) -> bool:
        """Whether a method's call is about the model."""
        name, owner = called.name, called.owner
        if name == "from_pretrained":
            return bool(LOADERS.match(of := owner.rpartition(".")[2]) or PROCESSORS.match(of))
        if name in {"to", "half", "bfloat16"}:
            first = called.first
            is_dtype = name != "to" or (isinstance(first, str) and first.startswith("torch."))
            return is_dtype and "model" in owner.lower() and "vision" not in owner.lower()
        return True

    def made(self, called: _Called) -> _Object:
        """What a config's, a trainer's or a model's call makes."""
        own = {
            key: value for key, value in self.classes.get(called.name, {}).items() if key != BASE
        }
        values = {**own, **called.keywords}
        name, positional = self.base_of(called.name) or called.name, called.positional
        if positional:
            if name == "from_pretrained":
                values = {"pretrained_model_name_or_path": positional[0], **values}
            elif name == "to":
                values["dtype"] = positional[0]
            elif name in TRAINERS:
                values = {**dict(zip(("model", "args"), positional, strict=False)), **values}
            elif name == "TrainingArguments" or name.endswith("Config"):
                firsts = {"LoraConfig": "task_type", "DistributedConfig": "tp_size"}
                first = firsts.get(name, "output_dir")
                values = {first: positional[0], **values}
            elif name == "prepare_model_for_kbit_training" and len(positional) > 1:
                values["use_gradient_checkpointing"] = positional[1]
        of = called.owner.rpartition(".")[2]
        made = _Object(name, values, called.node.lineno, of, called.lines)
        self.objects.append(made)
        return made

    def changed(self, called: _Called) -> Any:
        """What a call adds to a list, a dict, an object or ``os.environ``; ``MISSING``: it is another call."""
        first, before = called.first, self.names.get(called.owner)
        match called.name:
            case "append" | "extend" if isinstance(before, list):
                more = first if called.name == "extend" else [first]
                whole = before + more if isinstance(more, list) else called.unknown
                self.set(self.names, called.owner, whole)
                return None
            case "setattr" | "replace" if isinstance(first, _Object):
                three = called.positional if len(called.positional) == 3 else None
                named = called.keywords if three is None else {three[1]: three[2]}
                for key, value in named.items():
                    self.set(first.values, str(key), value)
                return first
            case "setdefault" if called.owner in ENVIRON and isinstance(first, str):
                if first not in self.environment and len(called.positional) > 1:
                    self.set(self.environment, first, called.positional[1])
                return self.environment.get(first, called.unknown)
            case "update" if isinstance(before, dict) or called.owner in ENVIRON:
                container = before if isinstance(before, dict) else self.environment
                given = first if isinstance(first, dict) else {}
                for key, value in {**given, **called.keywords}.items():
                    self.set(container, key, value)
                return None
        return MISSING

    def looked_up(self, called: _Called) -> Any:
        """A variable of the environment by its default, a key of a dict, a part of torch; ``MISSING``: another call."""
        first, *rest = called.positional or [None]
        if (called.owner, called.name) in LOOKUPS:
            return rest[0] if rest else called.keywords.get("default", called.unknown)
        if called.name == "get" and len(rest) == 1:
            of = self.names.get(called.owner)
            return of.get(first, rest[0]) if isinstance(of, dict) else rest[0]
        if called.name == "getattr" and rest and first == Unresolved("torch"):
            if isinstance(rest[0], FlagValue):
                return rest[0]
            return f"torch.{rest[0]}" if isinstance(rest[0], str) else called.unknown
        return MISSING

    def argparsed(self, called: _Called) -> Any:
        """What argparse makes, and the flags that it is given; ``MISSING``: it is another call."""
        first, line = called.first, called.node.lineno
        match called.name:
            case "ArgumentParser":
                return _Object("ArgumentParser", {}, line)
            case "add_argument" if isinstance(first, str):
                words = (word for word in called.positional if isinstance(word, str))
                flag = next((word for word in words if word.startswith("--")), first)
                key = str(called.keywords.get("dest", flag.lstrip("-").replace("-", "_")))
                unset = FlagValue(f"args.{key}", key)
                action = str(called.keywords.get("action"))
                default = {"store_true": False, "store_false": True}.get(action, unset)
                value = called.keywords.get("default", default)
                self.options[key] = unset if value is None else value
                return None
            case "parse_args" | "parse_known_args":
                given = {key: value for key, value in self.flags.items() if key in self.options}
                return _Object("options", {**self.options, **given}, line)
        return MISSING

    def parsed_classes(self, called: _Called) -> Any:
        """A parser of dataclasses, and the objects that it returns; ``MISSING``: it is another call."""
        node = called.node
        if called.name in PARSERS:
            return _Object("parser", {"types": self.types(node)}, node.lineno)
        if called.name in PARSES or called.name.startswith("parse_args_"):
            of = called.on
            if of is None and isinstance(node.func, ast.Attribute):
                of = self.value(node.func.value)
            if isinstance(of, _Object) and "types" in of.values:
                return [self.parsed(kind, node.lineno) for kind in of.values["types"]]
        return MISSING

    def types(self, node: ast.Call) -> list[str]:
        """The classes that a parser of dataclasses was given."""
        given = (
            node.args[0] if node.args else next((keyword.value for keyword in node.keywords), None)
        )
        parts = given.elts if isinstance(given, ast.Tuple | ast.List) else [given]
        return [ast.unparse(part).rpartition(".")[2] for part in parts if part is not None]

    def parsed(self, name: str, line: int) -> _Object:
        """What a parser makes of a class: its defaults; what the command line adds is read there."""
        own = {key: value for key, value in self.classes.get(name, {}).items() if key != BASE}
        base = self.base_of(name) or name
        self.options |= dict.fromkeys(own)
        given = {key: value for key, value in self.flags.items() if key in own}
        made = _Object(base, {**own, **given}, line, is_parsed=True)
        if base in CONFIGS:
            self.objects.append(made)
        return made


BUILT: Mapping[str, type] = {"int": int, "float": float, "str": str, "bool": bool}


def _built(called: _Called) -> Any:
    """What a built-in type makes of a known value; ``MISSING``: it is another call."""
    first = called.first
    if called.name == "dict" and not called.positional:
        return called.keywords
    if called.name in BUILT and not called.owner and isinstance(first, str | int | float):
        try:
            return BUILT[called.name](first)
        except (ValueError, OverflowError):
            return called.unknown
    return first if called.name in {"list", "tuple", "set"} and isinstance(first, list) else MISSING


def _last_name(node: ast.AST) -> str:
    """The last part of what is called; empty for what is no call."""
    func = node.func if isinstance(node, ast.Call) else None
    return (
        func.attr
        if isinstance(func, ast.Attribute)
        else func.id
        if isinstance(func, ast.Name)
        else ""
    )


def _raises(body: list[ast.stmt]) -> bool:
    """Whether statements end in an error, or end the program."""
    last = body[-1] if body else None
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return ast.unparse(last.value.func) in {"sys.exit", "exit", "quit", "os._exit"}
    return isinstance(last, ast.Raise)


def _returns(body: list[ast.stmt]) -> bool:
    """Whether what follows these statements is not run after them, though they are no error."""
    return bool(body) and isinstance(body[-1], ast.Return | ast.Continue | ast.Break)


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, int | float) for value in values)


def _is_main(test: ast.expr) -> bool:
    return "__name__" in ast.unparse(test)


def _plain(value: Any) -> Any:
    """A value without objects: those are read as keys of their own."""
    if isinstance(value, _Object):
        return Unresolved(value.target or value.name)
    if isinstance(value, list):
        found = [*map(_plain, value)]
        unknown = [part for part in found if isinstance(part, Unresolved)]
        return Unresolved(", ".join(map(_said, found))[:200]) if unknown else found
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return value
