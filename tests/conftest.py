"""Settings that hold for all tests."""

import os

from hypothesis import HealthCheck, settings

# A slow machine is no reason to fail: speed is measured in benchmarks/, never here.
settings.register_profile(
    "pate_fed", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("pate_fed")

# Parties run side by side; more threads below them would only fight for the same cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
