"""Write the lock files, hashes of everything that is installed but torch: ``make lock``.

requirements.lock has what pfedfda needs, requirements-flower.lock what a site or a server of a
federation needs. The versions are those of constraints.txt, the hashes those that the package index
names. torch is left out, and what comes with its builds for accelerators: which build is installed
is a choice, and each has a hash of its own.
"""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCKS: dict[str, tuple[str, list[str]]] = {
    "requirements.lock": ("pfedfda", []),
    "requirements-flower.lock": ("pfedfda[flower]", ["--extra", "flower"]),
}
OF_TORCH = re.compile(r"(torch|triton|nvidia-[\w-]+|cuda-[\w-]+)==")
HEADER = "# Versions and hashes of all that {what} needs but torch. Written by `make lock`.\n"


def resolve(extra: list[str]) -> str:
    """Return the pinned packages with their hashes, as uv finds them."""
    command = [
        "uv", "pip", "compile", "pyproject.toml", "--constraint", "constraints.txt", *extra,
        "--universal", "--python-version", "3.11", "--generate-hashes", "--no-header",
        "--no-annotate", "--quiet",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout


def without_torch(lock: str) -> str:
    """Return the lock without torch and what only its builds for accelerators need."""
    packages = re.split(r"^(?=\S)", lock, flags=re.MULTILINE)
    return "".join(package for package in packages if not OF_TORCH.match(package))


def main() -> None:
    """Write both files."""
    for name, (what, extra) in LOCKS.items():
        text = HEADER.format(what=what) + without_torch(resolve(extra))
        (ROOT / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
