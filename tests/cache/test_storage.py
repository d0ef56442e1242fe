"""Keys and values are read from pages as they were written, within the error of the format."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cache import storage
from cache.storage import AXES, KVLayout, pages_that_fit

LAYERS, PAGES, PAGE_SIZE, HEADS, DIM = 2, 5, 4, 3, 8


def layout(dtype):
    return KVLayout(LAYERS, PAGES, PAGE_SIZE, HEADS, DIM, dtype)


@pytest.mark.parametrize(
    ("dtype", "error"), [("float32", 0.0), ("bfloat16", 2**-8), ("int16", 0.5 / 32767), ("int8", 0.5 / 127)]
)
def test_keys_and_values_are_read_as_written(dtype, error):
    random = np.random.default_rng(0)
    keys, values = random.standard_normal((2, 6, HEADS, DIM)).astype(np.float32) * 5
    pages, offsets = np.array([1, 1, 3, 3, 4, 2]), np.array([0, 3, 1, 2, 0, 3])
    kv = layout(dtype).allocate().write(jnp.int32(1), pages, offsets, keys, values)
    read_keys, read_values = kv.read(jnp.int32(1), np.array([[1, 2], [3, 4]]), jnp.dtype("float32"))
    rows, places = np.array([0, 0, 1, 1, 1, 0]), np.array([0, 3, 1, 2, 4, 7])
    for read, written in ((read_keys, keys), (read_values, values)):
        assert read.shape == (2, HEADS, 2 * PAGE_SIZE, DIM)
        read = np.swapaxes(read, 1, 2)
        largest = np.abs(written).max(-1, keepdims=True)
        assert (np.abs(read[rows, places] - written) <= error * largest * 1.0001).all()
        untouched = np.ones(read.shape[:2], bool)
        untouched[rows, places] = False
        assert not np.asarray(read)[untouched].any()
    other_layer, _ = kv.read(jnp.int32(0), np.array([[1, 2], [3, 4]]), jnp.dtype("float32"))
    assert not other_layer.any()


@pytest.mark.parametrize("dtype", ["int16", "int8"])
def test_a_vector_of_zeros_survives_integers(dtype):
    zeros = np.zeros((1, HEADS, DIM), np.float32)
    kv = layout(dtype).allocate().write(jnp.int32(0), np.array([1]), np.array([0]), zeros, zeros)
    keys, values = kv.read(jnp.int32(0), np.array([[1]]), jnp.dtype("float32"))
    assert np.isfinite(keys).all()
    assert not keys.any()
    assert not values.any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int16", "int8"])
def test_bytes_per_page_is_the_real_size(dtype):
    kv = layout(dtype).allocate()
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(kv)) == PAGES * layout(dtype).bytes_per_page


def test_the_head_axis_can_be_split_over_a_mesh():
    assert AXES[3] == "head"
    spec = layout("float32").partition_spec("tensor")
    assert spec == PartitionSpec(None, None, None, "tensor", None, None)
    mesh = Mesh(np.array(jax.devices()[:1]), ("tensor",))
    kv = layout("int8").allocate(mesh, "tensor")
    assert kv.data.sharding == NamedSharding(mesh, spec)
    assert kv.scales.sharding == NamedSharding(mesh, PartitionSpec(None, None, None, "tensor", None))


def test_pages_come_from_a_share_or_from_bytes_and_never_more_than_are_of_use(monkeypatch):
    monkeypatch.setattr(storage, "machine_memory", lambda: (1000, 500))
    assert pages_that_fit(10, 99, memory_utilization=0.2) == 20
    assert pages_that_fit(10, 7, memory_utilization=0.2) == 7
    assert (
        pages_that_fit(10, 99, memory_utilization=0.9) == 40
    )  # the share is of the total, the limit of the available memory
    assert pages_that_fit(10, 99, memory_utilization=0.2, kv_cache_bytes=305) == 30
    with pytest.raises(ValueError, match="kv_cache_bytes is 401; at most 400"):
        pages_that_fit(10, 99, memory_utilization=0.2, kv_cache_bytes=401)
    with pytest.raises(ValueError, match="may take 100 bytes and a page takes 60: fewer than two"):
        pages_that_fit(60, 99, memory_utilization=0.1)


def test_the_memory_of_the_machine_is_known():
    total, available = storage.machine_memory()
    assert 0 < available <= total


def test_a_container_has_the_memory_of_its_limit(monkeypatch, tmp_path):
    monkeypatch.setattr(storage, "_CONTROL_GROUP", tmp_path)
    whole, _ = storage.machine_memory()
    (tmp_path / "memory.max").write_text("max\n")
    assert storage.machine_memory()[0] == whole
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    assert storage.machine_memory() == (1_000_000, 600_000)
    (tmp_path / "memory.stat").write_text("anon 100000\nactive_file 200000\ninactive_file 50000\n")
    assert storage.machine_memory() == (1_000_000, 850_000)


def test_a_page_of_one_part_holds_vectors_that_are_both() -> None:
    of_one = KVLayout(LAYERS, PAGES, PAGE_SIZE, 1, DIM, "float32", num_parts=1)
    assert of_one.bytes_per_page == KVLayout(LAYERS, PAGES, PAGE_SIZE, 1, DIM, "float32").bytes_per_page // 2
    vectors = jnp.arange(3 * DIM, dtype=jnp.float32).reshape(3, 1, DIM)
    kv = of_one.allocate().write(jnp.int32(1), jnp.array([2, 2, 4]), jnp.array([0, 1, 0]), vectors)
    keys, values = kv.read(jnp.int32(1), jnp.array([[2]]), jnp.dtype("float32"))
    np.testing.assert_array_equal(keys[0, 0, :2], vectors[:2, 0])
    np.testing.assert_array_equal(values, keys)
