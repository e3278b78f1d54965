"""What the tests of the pipeline share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FOR_SMALL_PLANS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
}


@pytest.fixture(scope="module", autouse=True)
def _small_plans(spark: SparkSession) -> Iterator[None]:
    """Compiling a plan and planning it anew costs more than running it on a few rows."""
    for key, value in _FOR_SMALL_PLANS.items():
        spark.conf.set(key, value)
    yield
    for key in _FOR_SMALL_PLANS:
        spark.conf.unset(key)
