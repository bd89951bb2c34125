"""Services with several processes answer the same while they are recorded and watched, and leave one report. `make
test-services` measures them."""

import importlib.util

import pytest

import run_services
from recording import needs_engine

pytestmark = needs_engine


@pytest.mark.grid
@pytest.mark.parametrize("mode", run_services.MODES)
@pytest.mark.parametrize("service", run_services.SERVICES, ids=lambda service: service.name)
def test_a_service_answers_the_same_while_it_is_recorded_and_watched(service: run_services.Service, mode: str) -> None:
    if importlib.util.find_spec(service.package) is None:
        pytest.skip(f"{service.package} is not installed")
    assert run_services.measure(service, mode, requests=20, viewers=2).wrong == []
