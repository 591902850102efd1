"""Settings of every test: no test fails because the machine is busy."""

from hypothesis import settings

settings.register_profile("evenflow", deadline=None)
settings.load_profile("evenflow")
