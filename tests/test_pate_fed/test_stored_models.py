"""Models as files."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from io import BytesIO
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from pate_fed.errors import UnreadableFileError
from pate_fed.stored_models import restored, stored


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


def test_a_part_that_bears_another_name_than_its_way_of_building_is_refused() -> None:
    """A function under the name of a trusted type would be called as the model's own."""
    model = LogisticRegression().fit([[0.0], [1.0]], [0, 1])
    model.predict_proba = partial(np.power, 2.0)
    content = stored(model)
    with ZipFile(BytesIO(content)) as file:
        parts = {name: file.read(name) for name in file.namelist()}

    def renamed(part: dict[str, Any]) -> dict[str, Any]:
        if part.get("__loader__") == "PartialNode":
            return {**part, "__class__": "Tree", "__module__": "sklearn.tree._tree"}
        return part

    lying = json.loads(parts["schema.json"], object_hook=renamed)
    with ZipFile(changed := BytesIO(), "w") as file:
        for name, one in {**parts, "schema.json": json.dumps(lying).encode()}.items():
            file.writestr(name, one)
    for one in (content, changed.getvalue()):
        with pytest.raises(UnreadableFileError, match="trusted"):
            restored(one)
