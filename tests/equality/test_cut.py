"""However gradients are merged and cut on their way, every weight, slot and metric equals one device."""

import pytest

from autodist_core.strategy import AllReduce, Parallax
from tests.support.models import MODELS, TWICE, ReferenceModel
from tests.support.training import assert_equal_training

CUTS = (AllReduce(bucket_bytes=8), AllReduce(chunk_size=3, bucket_bytes=100), Parallax(bucket_bytes=56))


@pytest.mark.quick("0-dense")
@pytest.mark.parametrize("index, reference", list(enumerate((MODELS + TWICE)[::2])), ids=str)
def test_small_buckets_equal_one_device(index: int, reference: ReferenceModel):
    assert_equal_training(reference, strategy=CUTS[index % 3], replicas=2 + index % 2)
