"""What all tests about files of others have in common."""

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import strategies as st

from pfedfda.errors import PfedfdaError

MOST_MEMORY = 600e6
LONGEST_MESSAGE = 2000
# Unlike that of getrusage, this peak does not begin with that of the process that starts another.
PEAK = """
import pathlib, sys
from pfedfda import InputError

def peak():
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
"""


def is_refused(function: Callable[..., Any], *arguments: Any) -> bool:
    """Call a function; tell whether it refused its arguments in one sentence of decent length."""
    message = None
    try:
        function(*arguments)
    except PfedfdaError as error:
        message = str(error)
    assert message is None or 10 < len(message) < LONGEST_MESSAGE
    return message is not None


@contextmanager
def little_memory() -> Iterator[None]:
    """Fail if the process's peak of memory grows by more than a little."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MOST_MEMORY


def peak_memory(setup: str, program: str, *words: str) -> tuple[int, str]:
    """Run a program in a process of its own; return by how much its peak grew, and its output.

    Parameters
    ----------
    setup
        What is not counted, such as imports.
    program
        What is. If it refuses its input, the sentence is printed.
    words
        Its ``sys.argv[1:]``.
    """
    lines = [
        PEAK,
        setup,
        "before = peak()",
        f"try: {program}",
        "except InputError as error: print(error)",
        "print(peak() - before)",
    ]
    command = [sys.executable, "-c", "\n".join(lines), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    printed, _, grown = done.stdout.strip().rpartition("\n")
    return int(grown), printed


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Return the content cut off somewhere, or with some of its bytes changed."""
    if draw(st.booleans()):
        return content[: draw(st.integers(0, len(content) - 1))]
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        # Most of what matters is at the beginning or at the end.
        place = draw(
            st.one_of(
                st.integers(0, min(400, len(content)) - 1),
                st.integers(max(len(content) - 400, 0), len(content) - 1),
                st.integers(0, len(content) - 1),
            )
        )
        changed[place] = draw(st.integers(0, 255))
    return bytes(changed)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**30, -(2**63), 2**63, 10**400])
    | st.floats()
    | st.text(max_size=10)
    | st.sampled_from(["../../etc/passwd", "/dev/zero", "a\0b", "x" * 5000]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
