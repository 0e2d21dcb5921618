"""Who has to be given a loader's arguments."""

from __future__ import annotations

import pytest

from trainprof.analysis.loading.loader_builder import builder_of


@pytest.mark.parametrize(
    ("metadata", "builder"),
    [
        ({"site": 3, "built_at": 5, "built_by": "planted"}, "planted"),
        # Where no line is the user's, the package's own is named: there they can be changed.
        ({"site": 3, "built_at": 3, "built_by": "planted"}, None),
        ({"site": 3, "built_at": 3, "built_by": "transformers"}, "transformers"),
        ({"site": 3, "built_at": 0, "built_by": None}, None),
        ({"site": 3}, None),  # an older run
        ({"site": 3, "built_by": ["nonsense"]}, None),
    ],
)
def test_who_builds_a_loader(metadata, builder):
    assert builder_of(metadata) == builder
