"""Renew `pate_fed/requirements.txt`: every library with its version and the hashes of its files.

`python -m benchmarks.lock` asks PyPI through uv. torch comes from PyTorch's own index, whose builds
need no graphics card; its hashes stay as they are where its version does, or that index is out of
reach.
"""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "pate_fed" / "requirements.txt"
INDEX = "https://download.pytorch.org/whl/cpu"
HEAD = f"""\
# Renewed by `make lock`. Install with: pip install --require-hashes -r requirements.txt
# torch: builds without graphics card support, for Linux.
--extra-index-url {INDEX}
"""
_FOR_GRAPHICS_CARDS = ("cuda-", "nvidia-", "triton")
_ENTRY = re.compile(r"^([A-Za-z0-9._-]+)==([^\s\\;]+).*(?:\n[ \t]+.*)*\n", re.MULTILINE)


def entries(text: str) -> list[tuple[str, str, str]]:
    """Return name, version and lines of each entry; versions of Python may have their own."""
    return [(found[1], found[2], found[0]) for found in _ENTRY.finditer(text)]


def main() -> None:
    compiled = subprocess.run(  # noqa: S603 - our own arguments
        [
            *(sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "--quiet"),
            *("--universal", "--python-version", "3.11", "--generate-hashes"),
            *("--no-annotate", "--no-header"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = []
    for name, version, lines in entries(compiled):
        if name == "torch":
            found.append(torch_entry(version))
        elif not name.startswith(_FOR_GRAPHICS_CARDS):
            found.append(lines)
    LOCK.write_text(HEAD + "".join(found), "utf-8")
    print(f"{LOCK.relative_to(ROOT)}: {len(found)} entries")


def torch_entry(version: str) -> str:
    """Return torch's entry: the builds for Linux without graphics card support."""
    kept = entries(LOCK.read_text("utf-8")) if LOCK.exists() else []
    known = next((lines for name, _, lines in kept if name == "torch"), "")
    try:
        with urllib.request.urlopen(f"{INDEX}/torch/", timeout=30) as page:  # noqa: S310 - https
            listed = page.read().decode()
    except OSError as error:
        if not known.startswith(f"torch=={version}+cpu "):
            raise SystemExit(f"torch {version} is new, and {INDEX} is out of reach") from error
        print(f"{INDEX} is out of reach: torch's hashes stay as they are")
        return known
    wheel = rf"torch-{re.escape(version)}(?:%2B|\+)cpu-cp3\d+-cp3\d+t?-manylinux\w+\.whl"
    hashes = sorted(set(re.findall(rf"{wheel}#sha256=([0-9a-f]{{64}})", listed)))
    lines = [f"torch=={version}+cpu", *(f"    --hash=sha256:{one}" for one in hashes)]
    return " \\\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
