"""Every step that the scheduler may plan gets the smallest compiled shape that holds it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.interface.config import TILE_SIZE
from engine.step.shapes import ShapeTable, StepShape


@given(st.integers(1, 300), st.integers(1, 16), st.data())
def test_every_step_fits_a_compiled_shape(max_num_seqs, max_num_tiles, data):
    table = ShapeTable(max_num_seqs, max_num_tiles)
    num_decode = data.draw(st.integers(0, max_num_seqs))
    num_tiles = data.draw(st.integers(0 if num_decode else 1, max_num_tiles))
    shape = table.fit(num_decode, num_tiles)
    assert shape in table.all()
    assert shape.num_decode_rows >= num_decode
    assert shape.num_tiles >= num_tiles
    assert (shape.num_tiles == 0) == (num_tiles == 0)
    smaller = [s for s in table.all() if num_decode <= s.num_decode_rows and num_tiles <= s.num_tiles]
    if num_tiles:
        smaller = [s for s in smaller if s.num_tiles]
    assert shape.num_tokens == min(s.num_tokens for s in smaller)
    assert table.num_sampled_rows(shape) in table.row_buckets
    assert table.num_sampled_rows(shape) >= min(num_decode + num_tiles, max_num_seqs)


def test_a_step_beyond_all_shapes_is_an_error():
    table = ShapeTable(4, 2)
    assert StepShape(4, 2).num_tokens == 4 + 2 * TILE_SIZE
    with pytest.raises(ValueError, match="5 is beyond the largest compiled size, 4"):
        table.fit(5, 0)
    with pytest.raises(ValueError, match="3 is beyond the largest compiled size, 2"):
        table.fit(1, 3)
