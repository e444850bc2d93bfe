"""Models as files."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_a_model_is_stored_and_restored_without_pytorch() -> None:
    """Every node that trains or reads a model would wait seconds for it."""
    program = (
        "import sys\n"
        "from sklearn.linear_model import LogisticRegression\n"
        "from pate_fed.stored_models import restored, stored\n"
        "model = LogisticRegression().fit([[0.0], [1.0]], [0, 1])\n"
        "again = restored(stored(model))\n"
        "print((again.coef_ == model.coef_).all(), 'torch' in sys.modules)\n"
        "import sklearn.externals.array_api_compat.torch  # whoever needs it has it\n"
        "print('torch' in sys.modules)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert ended.stdout.decode().split() == ["True", "False", "True"]
