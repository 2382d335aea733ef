"""Tables as a source: CSV and Parquet files."""

import csv
import gzip
import io
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pfedfda.data.arrays import HARMLESS_BYTES, MOST_COMPRESSION
from pfedfda.data.decoding import Progress
from pfedfda.data.sources import Dataset
from pfedfda.data.tables import Columns
from pfedfda.errors import InputError, quote

HARMLESS_TEXT = 2**26  # unpacked, of a small file: as cells it takes ten times as much
LONGEST_CELL = 2**24
SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")


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
    columns: Columns = field(default_factory=Columns)

    def read(self) -> tuple[dict[str, Sequence[Any]], Sequence[int] | None]:
        """Return the cells of every column, and the line of every row where there are lines."""
        if not self.path.is_file():
            raise InputError(f"There is no file {self.path}.")
        parquet = self.path.suffix.lower() == ".parquet"
        return (self._read_parquet(), None) if parquet else self._read_csv()

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
        table, lines = self.read()
        return self.columns.dataset(table, f"the table {self.path}", lines)

    def _read_csv(self) -> tuple[dict[str, Sequence[Any]], Sequence[int]]:
        """Return the columns, and the number of the line of every row."""
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
            rows, numbers = [], array("q")
            for row in lines:
                if not row:
                    continue  # an empty line
                if len(row) != len(names):
                    raise InputError(
                        f"Line {lines.line_num} of the table {self.path} has {len(row)} cells; the "
                        f"first line names {len(names)} columns."
                    )
                rows.append(row)
                numbers.append(lines.line_num)
        except csv.Error as error:
            raise InputError(
                f"Line {lines.line_num} of the table {self.path} cannot be read ({error})."
            ) from error
        if not rows:
            raise InputError(f"The table {self.path} has no rows.")
        return dict(zip(names, zip(*rows, strict=True), strict=True)), numbers

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
        most = max(HARMLESS_TEXT, MOST_COMPRESSION * packed)
        try:
            with gzip.open(self.path) as file:
                content = file.read(most + 1)
        except (OSError, EOFError, zlib.error) as error:
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
            with pyarrow.parquet.ParquetFile(self.path) as file:
                names = list(file.schema_arrow.names)
                self._check_names(names)
                table: dict[str, list[Any]] = {name: [] for name in names}
                self._refuse_giant(8 * file.metadata.num_rows * len(names))
                size = 0
                for batch in file.iter_batches(batch_size=1024):
                    for name, column in zip(names, batch.columns, strict=True):
                        packed = pyarrow.types.is_dictionary(column.type)
                        cells = column.dictionary_decode() if packed else column
                        size += 8 * len(cells) + cells.nbytes
                        self._refuse_giant(size)
                        table[name] += cells.to_pylist()
        except (OSError, pyarrow.ArrowException) as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"The table {self.path} cannot be read ({reason}).") from error
        if not any(table.values()):
            raise InputError(f"The table {self.path} has no rows.")
        return dict(table)

    def _refuse_giant(self, size: int) -> None:
        """Refuse a small Parquet file that takes very much memory."""
        packed = self.path.stat().st_size
        most = max(HARMLESS_BYTES, MOST_COMPRESSION * packed)
        if size > most:
            raise InputError(
                f"The table {self.path} has {packed:,} bytes and would take more than {most:,} in "
                f"memory: write it as an .npz file with numpy.savez."
            )
