"""Typed access to a ``config.json``: every getter refuses invalid values, naming the key and what to change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from estimator.values.refusals import NOT_MODELLED, InputError, Refusal, RefusedError, show

MOST_LAYERS = 1000  # layers: our limit, eight times the deepest catalogue model (126)
MOST_HEADS = 4096  # heads: our limit, seventeen times the catalogue's most (232)
MOST_ELEMENTS = 10**7  # rows or columns: as Model's own limit
MOST_POSITIONS = 10**8  # positions: our limit, ten times the longest in the catalogue (10,485,760)

KEY_NOT_MODELLED = Refusal(
    "{name} {value} is not modelled for {model_type}; set it to {instead} in the config.",
    NOT_MODELLED,
)


class WatchedConfig(Mapping[str, object]):
    """A config that records which keys were read; keys of a nested object are prefixed with its name."""

    def __init__(self, values: Mapping[str, object], asked: set[str], before: str = "") -> None:
        self.values_of, self.asked, self.before = values, asked, before

    def __getitem__(self, key: str) -> object:
        self.asked.add(self.before + key)
        value = self.values_of[key]
        if isinstance(value, Mapping):
            return WatchedConfig(value, self.asked, f"{self.before}{key}.")
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_of)

    def __len__(self) -> int:
        return len(self.values_of)


@dataclass(frozen=True, slots=True)
class Config:
    """Typed access to one config: every getter refuses invalid values, naming the key."""

    values: Mapping[str, object]
    model_type: str

    def refused(self, name: str, instead: object) -> RefusedError:
        """The refusal of this key's value, which is not modelled; ``instead`` as it is written in the config."""
        return KEY_NOT_MODELLED(
            name=name,
            value=short(self.values[name]),
            model_type=self.model_type,
            instead=instead,
        )

    def has(self, *names: str) -> str | None:
        """The first of these names that has a value."""
        return next((name for name in names if self.values.get(name) is not None), None)

    def whole(self, *names: str, default: int | None = None, most: int = MOST_ELEMENTS) -> int:
        """A positive integer, by the first of these names; required if there is no default."""
        name = self.has(*names)
        if name is None:
            if default is None:
                raise InputError(
                    f"the {self.model_type} config has no {names[0]}; add it, a whole number."
                )
            return default
        value = self.values[name]
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise wrong(name, f"be a whole number from 1 to {most}", value)
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise wrong(name, "be true or false", value)
        return value

    def share(self, name: str, *, default: float = 0.0) -> float:
        """A probability or a fraction."""
        value = self.values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise wrong(name, "be a number from 0 to 1", value)
        return float(value)

    def text(self, *names: str, default: str) -> str:
        """A name, by the first of these."""
        name = self.has(*names)
        if name is None:
            return default
        value = self.values[name]
        if not isinstance(value, str) or not value:
            raise wrong(name, "be a name", value)
        return value

    def cap(self, name: str, default: float | None) -> bool:
        """Whether a softcap is on; null turns it off."""
        value = self.values.get(name, default)
        if value is None:
            return False
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 10**9:
            raise wrong(name, "be a positive number or null", value)
        return True

    def part(self, name: str) -> Config:
        """A nested object; an empty one if missing."""
        value = self.values.get(name)
        if value is None:
            return Config({}, self.model_type)
        if not isinstance(value, Mapping):
            raise wrong(name, "be an object", value)
        return Config(value, self.model_type)

    def items(self, name: str, layers: int) -> tuple[object, ...]:
        """A list with one item per layer; empty if missing."""
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or len(value) != layers:
            length = f"{len(value)} items" if isinstance(value, list | tuple) else short(value)
            raise InputError(
                f"{name} must list one item for each of the {layers} layers, not {length}; "
                "correct it in the config."
            )
        return tuple(value)


def short(value: object, most: int = 40) -> str:
    """A value in JSON notation, shortened; a short list with its items."""
    if isinstance(value, list | tuple) and len(value) < most:
        listed = f"[{', '.join(map(show, value))}]"
        if len(listed) <= most:
            return listed
    return show(value)


def wrong(name: str, must: str, value: object) -> InputError:
    """The error of a key that must be something else."""
    return InputError(f"{name} must {must}, not {short(value)}; correct it in the config.")


def refuse_others(read: Config, only: Mapping[str, object]) -> None:
    """Refuses these keys if they have another value; missing or null is accepted."""
    for name, value in only.items():
        given = read.values.get(name)
        if given is not None and given != value:
            raise read.refused(name, short(value))


def kinds_in(
    read: Config, name: str, listed: Sequence[object], allowed: tuple[str, str]
) -> tuple[str, ...]:
    """A list of layers with only two allowed names."""
    for kind in listed:
        if kind not in allowed:
            raise InputError(
                f'{name} must only contain "{allowed[0]}" and "{allowed[1]}", not {short(kind)}; correct it in the '
                "config."
            )
    return tuple(map(str, listed))
