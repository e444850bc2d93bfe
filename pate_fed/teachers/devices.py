"""The machine's accelerators, for people to know: teachers here train on the processor."""

from __future__ import annotations

import torch


def graphics_cards() -> tuple[str, ...]:
    """Return the names of the graphics cards that torch could use."""
    if not torch.cuda.is_available():
        return ()
    return tuple(torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count()))
