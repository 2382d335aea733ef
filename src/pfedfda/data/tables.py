"""What the columns of a table are: a table of a file, or of a dataset of the Hub."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfedfda.data.sources import Dataset, printable_names
from pfedfda.errors import InputError, nearest, quote

LABEL_NAMES = ("label", "labels", "y", "target", "class")
GROUP_NAMES = ("client", "clients")
MISSING = {"", "na", "n/a", "nan", "null", "none", "?"}
MOST_CATEGORIES = 1000


@dataclass(frozen=True)
class Columns:
    """What the columns of a table are.

    Parameters
    ----------
    label_column
        The labels; by default the one called label, labels, y, target or class.
    group_column
        The clients; by default the one called client or clients, if there is one.
    text_column
        Texts, which are then the inputs in place of numbers.
    one_hot
        Turn a column of words into one column of 0 and 1 for each word, instead of refusing it.
    drop_columns
        Columns that are not inputs, separated by commas.
    expected
        The names of the features that there must be, in their order: those of the table that a
        model was trained on. Its clients, and what was left out of it, need not be there again.
    """

    label_column: str | None = None
    group_column: str | None = None
    text_column: str | None = None
    one_hot: bool = False
    drop_columns: str | None = None
    expected: tuple[str, ...] | None = None

    def dataset(
        self, table: Mapping[str, Sequence[Any]], place: str, lines: Sequence[int] | None = None
    ) -> Dataset:
        """Return the samples of a table.

        Parameters
        ----------
        table
            The cells of every column: text, numbers, or None for nothing.
        place
            What to call the table in messages.
        lines
            The number of the line of every row in a file of text; without it, rows are counted.
        """
        about = _Place(place, lines)
        label = self._found(table, about, self.label_column, LABEL_NAMES, "label-column")
        if label is None:
            raise InputError(
                f"{about.start} has no column of labels called {', '.join(LABEL_NAMES)}: name it "
                f"with --label-column; the columns are {quote(', '.join(table))}."
            )
        group = self._found(table, about, self.group_column, GROUP_NAMES, "group-column")
        dropped = [name.strip() for name in (self.drop_columns or "").split(",") if name.strip()]
        for name in dropped:
            self._found(table, about, name, (), "drop-columns")
        labels, class_names = _numbered(table[label], about, label)
        groups: NDArray[np.int64] | None = None
        group_names: tuple[str, ...] = ()
        if group is not None:
            groups, group_names = _numbered(table[group], about, group)
        columns: tuple[str, ...] = ()
        if self.text_column is not None:
            self._found(table, about, self.text_column, (), "text-column")
            inputs: NDArray[Any] = _texts(table[self.text_column], about, self.text_column)
        else:
            others = [n for n in table if n not in (label, group, *dropped)]
            inputs, columns = self._numbers({n: table[n] for n in others}, about)
        return Dataset(inputs, labels, class_names, groups, group_names, columns)

    def _found(
        self,
        table: Mapping[str, Any],
        about: "_Place",
        given: str | None,
        usual: tuple[str, ...],
        option: str,
    ) -> str | None:
        """Return the column that was named, or the one with a usual name."""
        if given is None:
            lower = {name.lower(): name for name in table}
            return next((lower[name] for name in usual if name in lower), None)
        if given not in table:
            if self.expected is not None and option in ("group-column", "drop-columns"):
                return None
            raise InputError(
                f"{about.start} has no column {quote(given)} (--{option}); it has "
                f"{quote(', '.join(table))}.{nearest(given, list(table))}"
            )
        return given

    def _numbers(
        self, features: Mapping[str, Sequence[Any]], about: "_Place"
    ) -> tuple[NDArray[np.float32], tuple[str, ...]]:
        """Return all features as numbers, and their names."""
        if not features:
            raise InputError(f"{about.start} has no column besides labels and clients.")
        made: dict[str, NDArray[np.float32]] = {}
        for name, cells in features.items():
            # A newcomer's words may all look like numbers.
            words = [n for n in self.expected or () if n.startswith(f"{name}=")]
            were_words = bool(words) and name not in (self.expected or ())
            numbers = None if were_words else _as_numbers(cells, about, name)
            if numbers is not None:
                new = {name: numbers}
            elif self.one_hot:
                new = _one_hot(cells, about, name, words)
            else:
                row = next(r for r, c in enumerate(cells) if not (_is_number(c) or _is_missing(c)))
                raise InputError(
                    f"The column {quote(name)} of {about.name} holds words, e.g. "
                    f"{quote(str(cells[row]))} in {about.line(row)}: turn them into numbers with "
                    f"--one-hot, leave the column out with --drop-columns, or make it the input "
                    f"with --text-column."
                )
            if twice := made.keys() & new.keys():
                raise InputError(
                    f"{about.start} has two columns called {quote(min(twice))} after --one-hot: "
                    f"rename one of them."
                )
            made |= new
        if self.expected:
            missing = [name for name in self.expected if name not in made]
            extra = [name for name in made if name not in self.expected]
            if missing or extra:
                wrong = f"lacks {quote(missing[0])}" if missing else f"also has {quote(extra[0])}"
                raise InputError(
                    f"{about.start} does not have the columns that the model was trained on: it "
                    f"{wrong}."
                )
            made = {name: made[name] for name in self.expected}
        return np.stack(list(made.values()), axis=1), printable_names(made)

    def rows(
        self, table: Mapping[str, Sequence[Any]], place: str, lines: Sequence[int] | None = None
    ) -> NDArray[Any]:
        """Return the inputs of a table without labels: the expected features, or the texts.

        Columns that are not needed, such as a label or a number, are passed over. The parameters
        are those of `dataset`.
        """
        about = _Place(place, lines)
        if self.text_column is not None:
            self._found(table, about, self.text_column, (), "text-column")
            return _texts(table[self.text_column], about, self.text_column)
        expected = self.expected or ()
        words = {n.partition("=")[0] for n in expected if n not in table and "=" in n}
        needed = {n: table[n] for n in table if n in expected or n in words}
        if not needed:
            raise InputError(
                f"{about.start} has no column that the model was trained on, such as "
                f"{quote(expected[0])}; it has {quote(', '.join(table))}."
            )
        for name, cells in needed.items():
            row = next((r for r, cell in enumerate(cells) if not _is_number(cell)), None)
            if name not in words and row is not None and not _is_missing(cells[row]):
                raise InputError(
                    f"The column {quote(name)} of {about.name} has {quote(str(cells[row]))} in "
                    f"{about.line(row)}; the model was trained on numbers."
                )
        return replace(self, one_hot=bool(words))._numbers(needed, about)[0]


@dataclass(frozen=True)
class _Place:
    """Where a cell is, for messages."""

    name: str
    lines: Sequence[int] | None

    @property
    def start(self) -> str:
        return self.name[:1].upper() + self.name[1:]

    def line(self, row: int) -> str:
        return f"row {row + 1}" if self.lines is None else f"line {self.lines[row]}"


def _is_missing(cell: Any) -> bool:
    return cell is None or str(cell).strip().lower() in MISSING


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True


def _refuse_missing(
    cells: Iterable[Any], about: _Place, column: str, allowed: tuple[str, ...] = ()
) -> None:
    for row, cell in enumerate(cells):
        blank = cell is None or not str(cell).strip()
        if blank or (_is_missing(cell) and str(cell).strip().lower() not in allowed):
            raise InputError(
                f"The column {quote(column)} of {about.name} has no value in {about.line(row)}"
                f"{'' if blank else f', only {quote(str(cell))}'}: fill it in or remove the line."
            )


def _as_numbers(cells: Sequence[Any], about: _Place, column: str) -> NDArray[np.float32] | None:
    """Return a column as numbers, or None if it has words."""
    if all(_is_missing(cell) for cell in cells):
        _refuse_missing(cells, about, column)
    if not any(_is_number(cell) and not _is_missing(cell) for cell in cells):
        return None
    try:
        numbers = np.array([float(cell) for cell in cells])
    except (TypeError, ValueError):
        if any(not _is_number(cell) and not _is_missing(cell) for cell in cells):
            return None
        _refuse_missing(cells, about, column)
        raise
    with np.errstate(over="ignore"):
        values = numbers.astype(np.float32)
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        _refuse_missing(cells, about, column)
        row = int(wrong[0])
        raise InputError(
            f"The column {quote(column)} of {about.name} has {quote(str(cells[row]))} in "
            f"{about.line(row)}, which is not a finite number."
        )
    return values


def _one_hot(
    cells: Sequence[Any], about: _Place, column: str, expected: list[str]
) -> dict[str, NDArray[np.float32]]:
    """Return a column of 0 and 1 for each word of a column."""
    _refuse_missing(cells, about, column)
    words, numbers = np.unique([str(cell) for cell in cells], return_inverse=True)
    if len(words) > MOST_CATEGORIES:
        raise InputError(
            f"The column {quote(column)} of {about.name} has {len(words):,} different words; at "
            f"most {MOST_CATEGORIES:,} become columns: leave it out with --drop-columns."
        )
    ones = np.eye(len(words), dtype=np.float32)[numbers]
    made = {f"{column}={word}": ones[:, k] for k, word in enumerate(words)}
    absent = [name for name in expected if name not in made]
    return made | {name: np.zeros(len(cells), dtype=np.float32) for name in absent}


def _texts(cells: Sequence[Any], about: _Place, column: str) -> NDArray[Any]:
    for row, cell in enumerate(cells):
        if cell is None or not str(cell).strip():
            raise InputError(
                f"The column {quote(column)} of {about.name} has no text in {about.line(row)}: "
                f"fill it in or remove the line."
            )
    return np.array([str(cell) for cell in cells], dtype=np.dtypes.StringDType())


def _numbered(
    cells: Sequence[Any], about: _Place, column: str
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return values as integers from 0 and their names, whole numbers in their own order."""
    # A class may well be called none.
    _refuse_missing(cells, about, column, allowed=("none",))
    values = [str(cell).strip() for cell in cells]
    unique = sorted(set(values))
    if all(value.removeprefix("-").isdecimal() for value in unique):
        unique.sort(key=int)
    number = {value: k for k, value in enumerate(unique)}
    return np.array([number[value] for value in values], dtype=np.int64), printable_names(unique)
