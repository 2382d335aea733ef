"""Tables as a source: CSV and Parquet files, and columns of datasets of the Hub."""

import csv
import gzip
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from pfedfda.data.arrays import HARMLESS_BYTES, MOST_COMPRESSION
from pfedfda.data.decoding import Progress
from pfedfda.data.sources import Dataset, printable_names
from pfedfda.errors import InputError, nearest, quote

LABEL_NAMES = ("label", "labels", "y", "target", "class")
GROUP_NAMES = ("client", "clients")
MISSING = {"", "na", "n/a", "nan", "null", "none", "?"}
MOST_CATEGORIES = 1000
LONGEST_CELL = 2**24
SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")


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
        model was trained on.
    """

    label_column: str | None = None
    group_column: str | None = None
    text_column: str | None = None
    one_hot: bool = False
    drop_columns: str | None = None
    expected: tuple[str, ...] = ()

    def dataset(self, table: Mapping[str, Sequence[Any]], place: str, first_line: int) -> Dataset:
        """Return the samples of a table.

        Parameters
        ----------
        table
            The cells of every column: text, numbers, or None for nothing.
        place
            What to call the table in messages.
        first_line
            The number of the line of the first row in messages.
        """
        about = _Place(place, first_line)
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
            numbers = _as_numbers(cells, about, name)
            if numbers is not None:
                made[name] = numbers
            elif self.one_hot:
                made |= _one_hot(cells, about, name, self.expected)
            else:
                row = next(r for r, cell in enumerate(cells) if not _is_number(cell))
                raise InputError(
                    f"The column {quote(name)} of {about.name} holds words, e.g. "
                    f"{quote(str(cells[row]))} in {about.line(row)}: turn them into numbers with "
                    f"--one-hot, leave the column out with --drop-columns, or make it the input "
                    f"with --text-column."
                )
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

    def rows(self, table: Mapping[str, Sequence[Any]], place: str, first_line: int) -> NDArray[Any]:
        """Return the inputs of a table without labels: the expected features, or the texts.

        Columns that are not needed, such as a label or a number, are passed over. The parameters
        are those of `dataset`.
        """
        about = _Place(place, first_line)
        if self.text_column is not None:
            self._found(table, about, self.text_column, (), "text-column")
            return _texts(table[self.text_column], about, self.text_column)
        words = {n.partition("=")[0] for n in self.expected if n not in table and "=" in n}
        needed = {n: table[n] for n in table if n in self.expected or n in words}
        if not needed:
            raise InputError(
                f"{about.start} has no column that the model was trained on, such as "
                f"{quote(self.expected[0])}; it has {quote(', '.join(table))}."
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
class TableFile:
    """A CSV file, also with tabs or semicolons and gzipped, or a Parquet file.

    Parameters
    ----------
    path
        The file; its first line has the names of the columns.
    columns
        What the columns are.
    """

    path: Path
    columns: Columns = Columns()

    def read(self) -> tuple[dict[str, Sequence[Any]], int]:
        """Return the cells of every column, and the number of the line of the first row."""
        if not self.path.is_file():
            raise InputError(f"There is no file {self.path}.")
        parquet = self.path.suffix.lower() == ".parquet"
        return (self._read_parquet(), 1) if parquet else (self._read_csv(), 2)

    def key(self) -> dict[str, Any]:
        """Return the path, size and time of change of the file, and what its columns are."""
        if not self.path.is_file():
            raise InputError(f"There is no file {self.path}.")
        stat = self.path.stat()
        file = [str(self.path.resolve()), stat.st_size, stat.st_mtime_ns]
        columns = {name: value for name, value in vars(self.columns).items() if value}
        return {"source": "table", "version": 1, "file": file, **columns}

    def load(self, progress: Progress | None = None) -> Dataset:
        """Read the table and turn its columns into inputs, labels and clients."""
        table, first_line = self.read()
        return self.columns.dataset(table, f"the table {self.path}", first_line)

    def _read_csv(self) -> dict[str, Sequence[Any]]:
        try:
            text = self._content().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InputError(f"The table {self.path} is not text in UTF-8 ({error}).") from error
        header = text.partition("\n")[0]
        delimiter = max(",", ";", "\t", key=header.count)
        csv.field_size_limit(LONGEST_CELL)
        lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        try:
            names = next(lines, [])
            self._check_names(names)
            rows = []
            for row in lines:
                if not row:
                    continue  # an empty line
                if len(row) != len(names):
                    raise InputError(
                        f"Line {lines.line_num} of the table {self.path} has {len(row)} cells; the "
                        f"first line names {len(names)} columns."
                    )
                rows.append(row)
        except csv.Error as error:
            raise InputError(
                f"Line {lines.line_num} of the table {self.path} cannot be read ({error})."
            ) from error
        if not rows:
            raise InputError(f"The table {self.path} has no rows.")
        return dict(zip(names, zip(*rows, strict=True), strict=True))

    def _check_names(self, names: list[str]) -> None:
        if not names:
            raise InputError(f"The table {self.path} is empty.")
        for place, name in enumerate(names):
            if not name.strip():
                raise InputError(
                    f"Column {place + 1} of the table {self.path} has no name: give it one, or "
                    f"leave it out (pandas writes such a column unless index=False)."
                )
            if name in names[:place]:
                raise InputError(f"The table {self.path} has two columns called {quote(name)}.")

    def _content(self) -> bytes:
        """Return the unpacked bytes; a small file that is very large unpacked is refused."""
        if self.path.suffix.lower() != ".gz":
            return self.path.read_bytes()
        packed = self.path.stat().st_size
        most = max(HARMLESS_BYTES, MOST_COMPRESSION * packed)
        try:
            with gzip.open(self.path) as file:
                content = file.read(most + 1)
        except (OSError, EOFError) as error:
            raise InputError(f"The table {self.path} cannot be unpacked ({error}).") from error
        if len(content) > most:
            raise InputError(
                f"The table {self.path} has {packed:,} bytes and more than {most:,} unpacked: "
                f"unpack it yourself if that is right."
            )
        return content

    def _read_parquet(self) -> dict[str, Sequence[Any]]:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise InputError(
                "Parquet files need the package pyarrow: pip install 'pfedfda[hub]'."
            ) from None
        try:
            table = pyarrow.parquet.read_table(self.path)
        except (OSError, pyarrow.ArrowException) as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"The table {self.path} cannot be read ({reason}).") from error
        self._check_names(list(table.column_names))
        if not table.num_rows:
            raise InputError(f"The table {self.path} has no rows.")
        return cast("dict[str, Sequence[Any]]", table.to_pydict())


@dataclass(frozen=True)
class _Place:
    """Where a cell is, for messages."""

    name: str
    first_line: int

    @property
    def start(self) -> str:
        return self.name[:1].upper() + self.name[1:]

    def line(self, row: int) -> str:
        return f"{'line' if self.first_line == 2 else 'row'} {row + self.first_line}"


def _is_missing(cell: Any) -> bool:
    return cell is None or str(cell).strip().lower() in MISSING


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True


def _refuse_missing(cells: Iterable[Any], about: _Place, column: str) -> None:
    for row, cell in enumerate(cells):
        if _is_missing(cell):
            raise InputError(
                f"The column {quote(column)} of {about.name} has no value in {about.line(row)}: "
                f"fill it in or remove the line."
            )


def _as_numbers(cells: Sequence[Any], about: _Place, column: str) -> NDArray[np.float32] | None:
    """Return a column as numbers, or None if it has words."""
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
    cells: Sequence[Any], about: _Place, column: str, expected: tuple[str, ...]
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
    absent = [n for n in expected if n.startswith(f"{column}=") and n not in made]
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
    _refuse_missing(cells, about, column)
    values = [str(cell).strip() for cell in cells]
    unique = sorted(set(values))
    if all(value.removeprefix("-").isdecimal() for value in unique):
        unique.sort(key=int)
    number = {value: k for k, value in enumerate(unique)}
    return np.array([number[value] for value in values], dtype=np.int64), printable_names(unique)
