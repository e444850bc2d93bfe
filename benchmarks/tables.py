"""What it takes to register one million rows at a hospital: CPU seconds and memory.

    python -m benchmarks.tables

It writes a made-up CSV file of 12 columns to a temporary folder, and looks at it as `pate-party
data add` does. The bounds are 60 CPU seconds and 1 GB.
"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from party.site.own_table import examine

ROWS = 1_000_000
MOST_SECONDS, MOST_BYTES = 60.0, 1e9


def write_rows(path: Path, rows: int) -> None:
    rng = np.random.default_rng(1)
    with path.open("w", encoding="utf-8") as file:
        file.write("pid,site,age,sex,hb,crp,na,k,gluc,admitted,unit,died\n")
        for start in range(0, rows, 10_000):
            numbers = rng.normal((12, 10, 140, 4, 100), (2, 5, 3, 0.5, 30), size=(10_000, 5))
            for row, (hb, crp, na, k, gluc) in enumerate(numbers.tolist(), start=start):
                day = f"{2010 + row % 12}-{1 + row % 11:02d}-{1 + row % 28:02d}"
                file.write(
                    f"P{row // 2:07d},{'ABCD'[row % 4]},{18 + row % 80},{'mf'[row % 2]},{hb:.2f},"
                    f"{crp:.1f},{na:.0f},{k:.2f},{gluc:.3f},{day},W{row % 7},{int(hb < 11)}\n"
                )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        write_rows(path, ROWS)
        begun = time.process_time()
        found = examine(path, label="died", patient_id="pid", floor=10)
        seconds = time.process_time() - begun
    most = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{found.rows:,} rows of {found.patients:,} patients, {len(found.columns)} columns: "
        f"{seconds:.1f} CPU s of {MOST_SECONDS:.0f}, {most / 1e9:.2f} GB of {MOST_BYTES / 1e9:.0f}"
    )


if __name__ == "__main__":
    main()
