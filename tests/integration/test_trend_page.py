"""The page of a trend: one run is a row of the table, several are a chart, too."""

import pytest
from sqlalchemy import Engine

from app.settings import Settings
from tests.support.keeping_data import add_trend
from tests.support.service import running_service, shown


@pytest.mark.parametrize(("values", "charts"), [([2.9e-8], 0), ([2.9e-8, 3.1e-8], 1)])
def test_single_run_is_not_a_chart(values: list[float], charts: int, settings: Settings, engine: Engine) -> None:
    add_trend(engine, settings.runs_dir, values)
    with running_service(settings) as service:
        page = shown(service.http, "/trends?kind=token-parity&check=gradient_parity")
    assert page.count('class="trend"') == charts
    assert page.count("<tbody>") == 1
