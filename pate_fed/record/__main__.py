"""Prints the JSON schema of one of a run's files: ``python -m pate_fed.record privacy.json``."""

from __future__ import annotations

import argparse
import json
import sys

from pate_fed.record import TABLES


def main() -> None:
    """Print the schema, with the meaning of each field, its unit, and whether it is public."""
    parser = argparse.ArgumentParser("python -m pate_fed.record", description=__doc__)
    parser.add_argument("file", choices=TABLES)
    table = TABLES[parser.parse_args().file]
    sys.stdout.write(json.dumps(table.model_json_schema(), indent=2) + "\n")


if __name__ == "__main__":
    main()
