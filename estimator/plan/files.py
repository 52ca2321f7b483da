"""Files of a plan: texts whose tokens are counted, a price list of one's own, and runnable configs that are written."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

from estimator.plan.question import TokenLengths
from estimator.sources import catalog
from estimator.tools.writing.files import TakeAway
from estimator.values.refusals import InputError, show
from estimator.values.specs import Price

BYTES_PER_TOKEN = (2.5, 5.0)
"""UTF-8 bytes of text per token, without its tokenizer: a guess. Four characters is the usual rule for English; code
and other scripts have fewer bytes per token, plain English under a large vocabulary more.

Source: OpenAI, "What are tokens and how to count them" (help.openai.com, article 4936856): 1 token is about
4 characters in English; the ends are ours.
"""
COUNTS = ("num_tokens", "n_tokens", "token_count", "tokens", "length", "input_length")
"""Columns that hold a number of tokens, in this order."""
CHATS = ("messages", "conversations", "conversation")
"""Columns that hold a list of messages."""
TEXTS = (
    ("text",),
    ("prompt", "completion"),
    ("instruction", "input", "output"),
    ("question", "answer"),
)
"""Columns of text that TRL, LLaMA-Factory and axolotl know; those of one tuple are one example."""
PRICE_COLUMNS = ("gpu", "provider", "usd_per_gpu_hour")
MOST_EXAMPLES = 5_000_000
"""Rows of a file of examples: ours; a file of the page's 50 MB has no more."""
MOST_OBJECTS = 2_000_000
"""Objects and lists of one JSON text: ours. Each takes some 100 bytes of memory, of two in the text."""
MOST_COLUMNS = 1_000
"""Columns of a CSV file: ours."""
MOST_DIGITS = 12
"""Digits of a number of tokens: ours."""
MOST_UNPACKED = 256 * 2**20
"""Bytes that a compressed file may unpack to: ours, five times the page's largest file."""
MOST_USD = 1e6
"""Per GPU-hour: as the setup's own key."""
CONTENTS = ("content", "value", "text")
"""Where a message has its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedTexts:
    """How long the examples of a file are."""

    examples: int
    low: TokenLengths
    """At the fewest tokens that the texts may have."""
    high: TokenLengths
    """At the most; the same as ``low`` where tokens were counted."""
    is_exact: bool
    how: str
    """What was counted, in one sentence."""


def count_texts(
    content: bytes, name: str, *, column: str = "", tokenizer: bytes | None = None
) -> CountedTexts:
    """Tokens of each example in a JSONL, JSON, CSV or parquet file; nothing leaves this machine.

    ``column``: which one to count; empty: the first that is known (``COUNTS``, ``input_ids``, ``CHATS``, ``TEXTS``).
    ``tokenizer``: the bytes of the model's tokenizer.json, read by the ``tokenizers`` package where it is installed;
    without it tokens are a range, by ``BYTES_PER_TOKEN``. A chat template's own tokens are not counted.

    >>> found = count_texts(b'{"text": "twelve bytes"}', "a.jsonl")
    >>> found.low.longest, found.high.longest, found.is_exact
    (3, 5, False)
    """
    rows = _numbered(_rows(content, name), name)
    first = next(rows, None)
    if first is None:
        raise InputError(f"{name} has no rows; give a file with one example a row.")
    columns, kind = _chosen(first, column, name)
    every = chain((first,), rows)
    if kind == "count":
        counts = [_counted(row.get(columns[0]), columns[0], name) for row in every]
        exact = TokenLengths.counted(counts)
        how = f"Counted from the column {columns[0]} of {name}."
        return CountedTexts(examples=len(counts), low=exact, high=exact, is_exact=True, how=how)
    texts = (_text(row, columns) for row in every)
    named = " and ".join(columns)
    if tokenizer is not None:
        encode = _encoder(tokenizer)
        counts = [max(1, encode(text)) for text in texts]
        exact = TokenLengths.counted(counts)
        how = f"Tokens of {named} in {name}, counted with the tokenizer; a chat template adds more."
        return CountedTexts(examples=len(counts), low=exact, high=exact, is_exact=True, how=how)
    sizes = [len(text.encode()) for text in texts]
    most, fewest = BYTES_PER_TOKEN
    low, high = (
        TokenLengths.counted([max(1, -int(-size // each)) for size in sizes])
        for each in (fewest, most)
    )
    how = (
        f"Bytes of {named} in {name} at {BYTES_PER_TOKEN[0]:g} to {BYTES_PER_TOKEN[1]:g} per token, a guess: "
        "give the model's tokenizer.json to count."
    )
    return CountedTexts(examples=len(sizes), low=low, high=high, is_exact=False, how=how)


def _numbered(rows: Iterator[Mapping[str, Any]], name: str) -> Iterator[Mapping[str, Any]]:
    """The rows, while they are few enough."""
    for number, row in enumerate(rows, 1):
        if number > MOST_EXAMPLES:
            raise InputError(f"{name} has more than {MOST_EXAMPLES:,} rows; give a sample of them.")
        yield row


def _rows(content: bytes, name: str) -> Iterator[Mapping[str, Any]]:
    """The rows of a file, one after another: no more of them are in memory than are read."""
    ending = name.rpartition(".")[2].lower()
    if ending == "parquet":
        yield from _parquet(content, name)
        return
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{name} is not UTF-8 text; save it as UTF-8.") from None
    if ending == "csv":
        yield from _csv(text, name)
        return
    if ending == "json":
        whole = _json(text, name, 1)
        if not isinstance(whole, list):
            raise InputError(f"{name} must be a list of examples, or JSONL with one a line.")
        yield from (_row(row, name, number + 1) for number, row in enumerate(whole))
        return
    if ending != "jsonl":
        raise InputError(f"{name} is no file of examples; give .jsonl, .json, .csv or .parquet.")
    for number, line in enumerate(io.StringIO(text), 1):
        if line.strip():
            yield _row(_json(line, name, number), name, number)


def _csv(text: str, name: str) -> Iterator[Mapping[str, Any]]:
    if text.partition("\n")[0].count(",") >= MOST_COLUMNS:
        raise InputError(f"{name} has more than {MOST_COLUMNS:,} columns; leave out the others.")
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        for row in reader:
            if None in row:
                raise InputError(
                    f"{name}, line {reader.line_num}: it has more cells than the first line names; "
                    "put cells that contain commas in quotes."
                )
            yield row
    except csv.Error as problem:
        raise InputError(
            f"{name}, line {reader.line_num + 1}: no CSV ({problem}); correct it, or save the file as JSONL."
        ) from None


def _json(text: str, name: str, line: int) -> Any:
    if text.count("{") + text.count("[") > MOST_OBJECTS:
        raise InputError(
            f"{name}, line {line}: it has more than {MOST_OBJECTS:,} objects and lists; split the file."
        )
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{name}, line {line}: no JSON; correct it there.") from None


def _row(value: Any, name: str, number: int) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{name}, row {number}: an example must be an object, not {show(value)}.")
    return value


def _parquet(content: bytes, name: str) -> Iterator[Mapping[str, Any]]:
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError:
        raise InputError(
            f"{name}: parquet is read by pyarrow; install it, or save the file as JSONL."
        ) from None
    try:
        file = parquet.ParquetFile(io.BytesIO(content))
        sizes = [
            _unpacked(file.metadata.row_group(number)) for number in range(file.num_row_groups)
        ]
        if sum(sizes) > MOST_UNPACKED:
            raise InputError(_too_large(name))
        # one value may be as long as its whole group, and be repeated in each row
        at_once = max(1, min(1024, MOST_UNPACKED // 8 // max(1, *sizes, 1)))
        total = 0
        for batch in file.iter_batches(batch_size=at_once):
            total += batch.nbytes
            if total > MOST_UNPACKED:
                raise InputError(_too_large(name))
            yield from batch.to_pylist()
    except InputError:
        raise
    except (OSError, ValueError) as problem:
        raise InputError(f"{name} is no parquet file: {str(problem).splitlines()[0]}") from None


def _unpacked(group: Any) -> int:
    """Bytes of a row group as its columns are stored uncompressed, and at 8 bytes a value."""
    columns = [group.column(number) for number in range(group.num_columns)]
    return sum(max(column.total_uncompressed_size, 8 * column.num_values) for column in columns)


def _too_large(name: str) -> str:
    return (
        f"{name} unpacks to more than {MOST_UNPACKED // 2**20} MiB; give a sample of its rows, "
        "or its column of text alone."
    )


def _chosen(row: Mapping[str, Any], column: str, name: str) -> tuple[Sequence[str], str]:
    """Which columns are an example, and whether they hold a count."""
    if column:
        if column not in row:
            raise InputError(f"{name} has no column {show(column)}; it has {', '.join(row)}.")
        return (column,), "count" if _is_count(row[column]) else "text"
    for known in COUNTS:
        if known in row and _is_count(row[known]):
            return (known,), "count"
    if isinstance(row.get("input_ids"), list):
        return ("input_ids",), "count"
    for known in CHATS:
        if isinstance(row.get(known), list):
            return (known,), "text"
    for together in TEXTS:
        found = [column for column in together if isinstance(row.get(column), str | list)]
        if together[0] in found:
            return found, "text"
    raise InputError(
        f"{name} has the columns {', '.join(map(str, row))}, none of which is known to be text; name one with column."
    )


def _is_count(value: Any) -> bool:
    if isinstance(value, list):
        return {*map(type, value)} == {int}
    if isinstance(value, str):
        return len(value) <= MOST_DIGITS and value.isdecimal()
    return type(value) is int


def _counted(value: Any, column: str, name: str) -> int:
    if not _is_count(value):
        raise InputError(
            f"{name}: a row has {show(value)} in {column}, where others have a number."
        )
    return len(value) if isinstance(value, list) else int(value)


def _text(row: Mapping[str, Any], columns: Iterable[str]) -> str:
    return "\n".join(filter(None, (_said(row.get(column)) for column in columns)))


def _said(value: Any) -> str:
    """The text of a cell, or of all messages of a chat, however deep they are nested."""
    texts, left = [], [value]
    while left:
        part = left.pop()
        if isinstance(part, Mapping):
            left.append(next((part[key] for key in CONTENTS if key in part), ""))
        elif isinstance(part, list) and part:
            left += reversed(part)
        else:
            texts.append(part if isinstance(part, str) else "")
    return "\n".join(texts)


def _encoder(tokenizer: bytes) -> Callable[[str], int]:
    try:
        tokenizers = import_module("tokenizers")
    except ImportError:
        raise InputError(
            "tokenizer.json is read by the tokenizers package; install it, or give token counts in a column."
        ) from None
    try:
        read = tokenizers.Tokenizer.from_buffer(tokenizer)
    except Exception as problem:  # the package raises plain Exception
        raise InputError(f"the tokenizer cannot be read: {str(problem)[:200]}.") from None
    return lambda text: len(read.encode(text).ids)


def price_list(content: bytes, name: str) -> Mapping[str, tuple[Price, ...]]:
    r"""The listings of a CSV file of one's own, by the catalogue's name of the card; columns as data/prices.csv.

    Needed are gpu, provider and usd_per_gpu_hour; ``InputError`` names the line that cannot be read.

    >>> price_list(b"gpu,provider,usd_per_gpu_hour\nrtx 4090,us,0.2\n", "p.csv")["GeForce RTX 4090"][0].usd_per_gpu_hour
    0.2
    """
    rows: list[dict[str, str]] = []
    for number, row in enumerate(_rows(content, name), 2):
        missing = [column for column in PRICE_COLUMNS if not row.get(column)]
        if missing:
            raise InputError(f"{name}, line {number}: {missing[0]} is missing.")
        try:
            usd, least = float(row["usd_per_gpu_hour"]), int(row.get("min_gpus") or 1)
            most = int(row.get("max_gpus") or least)
        except ValueError:
            raise InputError(
                f"{name}, line {number}: usd_per_gpu_hour, min_gpus and max_gpus must be numbers."
            ) from None
        if not (0 <= usd <= MOST_USD and 1 <= least <= most):
            raise InputError(
                f"{name}, line {number}: a price is from 0 to {MOST_USD:g}, min_gpus at least 1 and at most max_gpus."
            )
        old = row.get("is_old") or "false"
        if old not in ("true", "false"):
            raise InputError(f"{name}, line {number}: is_old must be true or false.")
        rows.append({**row, "gpu": catalog.gpu(row["gpu"]).name})
    if not rows:
        raise InputError(f"{name} has no prices; give a row for each listing.")
    return catalog.by_gpu(rows)


def write_take_away(away: TakeAway, folder: str) -> list[str]:
    """Write the files of a setup into a folder, which is made; an existing file is not overwritten."""
    target = Path(folder)
    existing = [name for name in away.files if (target / name).exists()]
    if existing:
        raise InputError(f"{folder} already has {', '.join(existing)}; name another folder.")
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, text in away.files.items():
            (target / name).write_text(text, encoding="utf-8")
    except OSError as problem:
        raise InputError(
            f"{folder} cannot be written: {(problem.strerror or 'unknown').lower()}."
        ) from None
    return [*away.files]


def beside(path: str, name: str) -> str:
    """A file that is named in another, by its path from there."""
    return str(Path(path).parent / name)


@contextmanager
def stdout_for_answers() -> Iterator[None]:
    """Sends what a library writes to the process's standard output to its standard error.

    HiGHS 1.16 writes its name there when a solver is made, before an option could forbid it.
    """
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
