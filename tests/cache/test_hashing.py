"""Names of pages are chained, unambiguous, and only for full pages."""

from hypothesis import given
from hypothesis import strategies as st

from cache.hashing import NONE_HASH, NamedSpan, hash_page_tokens, hash_request_tokens, sha256_hash

token_lists = st.lists(st.integers(0, 2**31 - 1), max_size=40)
keys = st.lists(st.text(max_size=4), max_size=3).map(tuple)


@given(token_lists, st.integers(1, 9), keys)
def test_a_request_is_the_chain_of_its_full_pages(tokens, page_size, extra_keys):
    hashes = hash_request_tokens(sha256_hash, page_size, tokens, extra_keys)
    assert len(hashes) == len(tokens) // page_size
    parent = None
    for index, page_hash in enumerate(hashes):
        page = tokens[index * page_size : (index + 1) * page_size]
        assert page_hash == hash_page_tokens(sha256_hash, parent, page, extra_keys)
        assert page_hash.token_ids == tuple(page)
        parent = page_hash.hash_value


@given(token_lists, st.integers(1, 9), st.integers(0, 40))
def test_known_hashes_are_continued_not_computed_again(tokens, page_size, num_known):
    whole = hash_request_tokens(sha256_hash, page_size, tokens)
    calls = []

    def counting(parent, token_ids, extra_keys):
        calls.append(token_ids)
        return sha256_hash(parent, token_ids, extra_keys)

    known = whole[:num_known]
    assert [*known, *hash_request_tokens(counting, page_size, tokens, known=known)] == whole
    assert len(calls) == len(whole) - len(known)


@given(keys, token_lists, keys, token_lists)
def test_different_contents_have_different_hashes(keys_a, tokens_a, keys_b, tokens_b):
    same_hash = sha256_hash(NONE_HASH, tokens_a, keys_a) == sha256_hash(NONE_HASH, tokens_b, keys_b)
    assert same_hash == ((keys_a, tokens_a) == (keys_b, tokens_b))


def test_the_parent_is_part_of_the_name():
    first = hash_page_tokens(sha256_hash, None, [1, 2])
    assert hash_page_tokens(sha256_hash, first.hash_value, [1, 2]).hash_value != first.hash_value
    assert hash_page_tokens(sha256_hash, NONE_HASH, [1, 2]) == first


def test_pages_with_a_part_of_a_named_span_have_its_name_as_a_key():
    tokens, spans = [7] * 16, [NamedSpan(3, 5, "a"), NamedSpan(9, 10, "b")]
    hashes = hash_request_tokens(sha256_hash, 4, tokens, ("salt",), spans=spans)
    assert [page_hash.extra_keys for page_hash in hashes] == [
        ("salt", "a"), ("salt", "a"), ("salt", "b"), ("salt",),
    ]  # fmt: skip
    assert hash_request_tokens(sha256_hash, 4, tokens, ("salt",), hashes[:2], spans) == hashes[2:]
    others = hash_request_tokens(sha256_hash, 4, tokens, ("salt",), spans=[spans[0], spans[1]._replace(name="c")])
    assert others[:2] == hashes[:2]
    assert {page.hash_value for page in others[2:]}.isdisjoint(page.hash_value for page in hashes)


def test_no_salt_is_mistaken_for_the_name_of_a_span():
    spans = [NamedSpan(0, 4, "picture a")]
    (of_picture,) = hash_request_tokens(sha256_hash, 4, [7] * 4, spans=spans)
    (of_salt,) = hash_request_tokens(sha256_hash, 4, [7] * 4, ("picture a",))
    assert of_picture.hash_value != of_salt.hash_value
    assert of_picture.extra_keys != of_salt.extra_keys
