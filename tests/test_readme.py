"""README says what is so."""

from __future__ import annotations

import pytest
from support import proofs


def test_the_table_of_what_runs_is_what_the_tests_prove(request: pytest.FixtureRequest) -> None:
    config = request.config
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if not is_whole or config.option.keyword or config.option.markexpr:
        pytest.skip("tells only where every test was collected")
    _, written, _ = proofs.split_readme()
    assert written == proofs.table(request.session.items), "run pytest --update-readme"
