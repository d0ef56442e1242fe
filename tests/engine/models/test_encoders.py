"""Every encoder against transformers, on the tiny models of tests/golden/encoders, through the whole engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, GGUFWriter
from safetensors.numpy import save_file

from engine.backends.backends import BACKENDS
from engine.backends.base.backend import Backend
from engine.backends.native.library import multiplies_bytes_faster
from engine.backends.xla.matrices import ArrayLayout
from engine.client import EngineClient
from engine.interface.config import TILE_SIZE, EngineConfig
from engine.interface.context_overflow import ContextOverflow
from engine.interface.errors import ModelError
from engine.interface.types import Pooling
from engine.models.open_model import OpenModel, open_model
from engine.models.registry import ARCHITECTURES
from engine.weights.layout import Precision
from sampling.host.params import InvalidParameter, SamplingParams
from tests.golden.architectures.tiny_weights import tiny_weights
from tests.thoroughness import IS_FULL

FOLDER = Path(__file__).parents[2] / "golden" / "encoders"
GOLDENS: dict[str, dict[str, Any]] = {
    path.stem: {"name": path.stem, **json.loads(path.read_text(encoding="utf-8"))}
    for path in sorted(FOLDER.glob("*.json"))
}
DECODER = "qwen3_classifier"  # whose head scores texts
GGUF_ARCHITECTURES = {
    "bert": MODEL_ARCH.BERT,
    "xlm_roberta_classifier": MODEL_ARCH.BERT,
    "nomic_bert": MODEL_ARCH.NOMIC_BERT,
    "nomic_bert_moe": MODEL_ARCH.NOMIC_BERT_MOE,
    "llama_embed": MODEL_ARCH.LLAMA,  # the gguf package does not know its name
    "jina_v3": MODEL_ARCH.JINA_BERT_V3,
    "modern_bert": MODEL_ARCH.MODERN_BERT,
    "modern_bert_classifier": MODEL_ARCH.MODERN_BERT,
    "gemma_embedding": MODEL_ARCH.GEMMA_EMBEDDING,
    DECODER: MODEL_ARCH.QWEN3,
}
OF_EACH_BACKEND = {"bert", "xlm_roberta", "modern_bert"}
if IS_FULL:
    OF_EACH_BACKEND |= {"nomic_bert_moe", "llama_embed", "bert_tanh", "bert_classifier", "xlm_roberta_classifier"}
FIELD = {Pooling.CLS: "cls", Pooling.LAST: "last", Pooling.MEAN: "mean"}


def tensors_of(golden: dict[str, Any]) -> dict[str, np.ndarray]:
    tensors = tiny_weights(golden["config"]["architectures"][0], golden["shapes"], golden["seed"])
    return {name: values for name, values in tensors.items() if name not in golden.get("left_out", ())}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each golden, of its name."""
    root = tmp_path_factory.mktemp("encoders")
    for name, golden in GOLDENS.items():
        (root / name).mkdir()
        write_golden(root / name, golden)
    return root


@asynccontextmanager
async def engine_of(path: Path, backend: str, **changes: Any) -> AsyncIterator[EngineClient]:
    config = EngineConfig(**{"dtype": "float32", "matmul_backend": backend, "attention_backend": backend, **changes})
    client = await asyncio.to_thread(EngineClient.load, path, config, lambda stage, done, total: None)
    client.start(asyncio.get_running_loop())
    try:
        yield client
    finally:
        client.shutdown()


async def embed_all(client: EngineClient, texts: Sequence[Any], pooling: Pooling) -> list[np.ndarray]:
    return await asyncio.gather(
        *(client.embed(text["token_ids"], pooling, second_start=text["second_start"]) for text in texts)
    )


def test_every_encoder_has_a_golden() -> None:
    with_golden = {golden["config"]["architectures"][0].replace("XLM", "") for golden in GOLDENS.values()}
    encoders = {each.transformers_name.replace("XLM", "") for each in ARCHITECTURES if each.model.is_encoder}
    encoders -= {"JinaBertModel", "JinaBertForMaskedLM"}  # which transformers does not have
    assert encoders <= with_golden


@pytest.mark.parametrize(
    ("backend", "name"),
    [
        (each, name)
        for name in GOLDENS
        if name != DECODER
        for each in BACKENDS
        if name in OF_EACH_BACKEND or each.name == "native"
    ],
    indirect=["backend"],
)
async def test_texts_are_pooled_as_transformers_does(folders: Path, backend: Backend, name: str) -> None:
    """All at once, so that steps have several texts; and each alone, which gives the same bits."""
    texts = GOLDENS[name]["texts"]
    has_scores = "scores" in texts[0]
    async with engine_of(folders / name, backend.name, max_num_seqs=4, max_num_batched_tokens=64) as client:
        assert client.model_info.is_encoder
        assert client.model_info.num_labels == (len(texts[0]["scores"]) if has_scores else 0)
        for pooling in [client.model_info.head_pooling] if has_scores else list(FIELD):
            got = await embed_all(client, texts, pooling)
            field = "scores" if has_scores else FIELD[pooling]
            for text, vector in zip(texts, got, strict=True):
                np.testing.assert_allclose(vector, text[field], rtol=0, atol=2e-5)
            for text, vector in zip(texts, got, strict=True):
                (alone,) = await embed_all(client, [text], pooling)
                assert np.array_equal(alone, vector)
        assert client.stats().compiles_after_ready == 0
        assert client.stats().num_active_pages == 0


async def test_products_of_a_sentence_encoder_are_of_bytes_where_these_are_faster(native: str, folders: Path) -> None:
    """And where nothing else is wanted: floats of a file become int8 then. Embeddings of words stay as they are."""
    texts = GOLDENS["bert"]["texts"]
    assert multiplies_bytes_faster() is native.startswith("avx512")
    faster = {"bfloat16+int8"} if multiplies_bytes_faster() else {"bfloat16"}
    for dtype, expected in (("auto", faster), ("bfloat16", {"bfloat16"}), ("float32", {"float32"})):
        async with engine_of(folders / "bert", "native", dtype=dtype, max_num_seqs=4) as client:
            assert {client.model_info.dtype} == expected
            for text, vector in zip(texts, await embed_all(client, texts, Pooling.MEAN), strict=True):
                wanted = np.array(text["mean"])
                assert 1 - vector @ wanted / np.linalg.norm(vector) / np.linalg.norm(wanted) < 2e-3


async def test_scores_are_computed_with_what_the_file_has(native: str, folders: Path) -> None:
    """A head that scores pairs says where one is better, which rounding might turn around."""
    async with engine_of(folders / "bert_classifier", "native", dtype="auto", max_num_seqs=4) as client:
        assert client.model_info.dtype == "bfloat16"


async def test_each_token_of_a_text_has_its_own_embedding(folders: Path) -> None:
    """All at once and each alone, beside texts that are pooled."""
    texts = GOLDENS["bert"]["texts"]
    async with engine_of(folders / "bert", "native", max_num_seqs=4, max_num_batched_tokens=64) as client:
        several = await asyncio.gather(*(embed_all(client, texts, pooling) for pooling in (Pooling.NONE, Pooling.MEAN)))
        for text, own, mean in zip(texts, *several, strict=True):
            assert own.shape == (len(text["token_ids"]), len(mean))
            for vector, field in ((own[0], "cls"), (own[-1], "last"), (own.mean(axis=0), "mean")):
                np.testing.assert_allclose(vector, text[field], rtol=0, atol=2e-5)
            np.testing.assert_allclose(mean, text["mean"], rtol=0, atol=2e-5)
            (alone,) = await embed_all(client, [text], Pooling.NONE)
            assert np.array_equal(alone, own)


def pooled(states: np.ndarray, pooling: Pooling, first: int = 0) -> np.ndarray:
    """What sentence-transformers makes of the states of a text's tokens, of which the first ones are a prompt's."""
    own, weights = states[first:], np.arange(first, len(states))[:, None] + 1
    match pooling:
        case Pooling.CLS:
            vector = own[0]
        case Pooling.LAST:
            vector = own[-1]
        case Pooling.MEAN:
            vector = own.mean(axis=0)
        case Pooling.MEAN_SQRT_LEN:
            vector = own.sum(axis=0) / len(own) ** 0.5
        case Pooling.WEIGHTED_MEAN:
            vector = (own * weights).sum(axis=0) / weights.sum()
        case Pooling.MAX:
            vector = own.max(axis=0)
        case _:
            raise AssertionError(pooling)
    return np.asarray(vector)


@pytest.mark.parametrize("name", ["bert", DECODER])
async def test_every_pooling(folders: Path, name: str) -> None:
    """Texts of all poolings in one step, of one tile and of several; and each alone, which gives the same bits."""
    texts = GOLDENS[name]["texts"]
    poolings = [each for each in Pooling if each is not Pooling.NONE]
    async with engine_of(folders / name, "native", max_num_seqs=4, max_num_batched_tokens=64) as client:
        if name == DECODER:  # its head stands for a dense layer
            poolings.remove(Pooling.MAX)
            with pytest.raises(InvalidParameter, match="pooling is max"):
                await client.embed(texts[0]["token_ids"], Pooling.MAX)
        states = await embed_all(client, texts, Pooling.NONE)
        several = await asyncio.gather(*(embed_all(client, texts, pooling) for pooling in poolings))
        for pooling, got in zip(poolings, several, strict=True):
            for text, own, vector in zip(texts, states, got, strict=True):
                np.testing.assert_allclose(vector, pooled(own, pooling), rtol=0, atol=2e-5)
                (alone,) = await embed_all(client, [text], pooling)
                assert np.array_equal(alone, vector)
        text = texts[-1]
        for pooling in poolings:
            behind_prompt = await client.embed(
                text["token_ids"], pooling, second_start=text["second_start"], first_pooled=3
            )
            np.testing.assert_allclose(behind_prompt, pooled(states[-1], pooling, 3), rtol=0, atol=2e-5)
        longest = max(range(len(texts)), key=lambda at: len(texts[at]["token_ids"]))
        first = len(states[longest]) - 2  # a prompt that fills whole tiles
        assert first > TILE_SIZE
        for pooling in poolings:
            behind_prompt = await client.embed(
                texts[longest]["token_ids"], pooling, second_start=texts[longest]["second_start"], first_pooled=first
            )
            np.testing.assert_allclose(behind_prompt, pooled(states[longest], pooling, first), rtol=0, atol=2e-5)
        one_by_one = [await client.embed(text["token_ids"], pooling) for pooling in poolings]
        num_before = client.stats().num_prompt_tokens
        joined = await asyncio.gather(
            client.embed(text["token_ids"], tuple(poolings)), client.embed(text["token_ids"], tuple(poolings[1:3]))
        )
        assert np.array_equal(joined[0], np.concatenate(one_by_one))
        assert np.array_equal(joined[1], np.concatenate(one_by_one[1:3]))
        num_each = len(text["token_ids"]) + (name == DECODER)  # the text is computed once, however it is pooled
        assert client.stats().num_prompt_tokens - num_before == 2 * num_each
        assert client.stats().compiles_after_ready == 0


async def test_what_an_encoder_refuses(folders: Path) -> None:
    async with engine_of(folders / "bert", "native", max_model_len=100) as client:
        with pytest.raises(InvalidParameter, match="an encoder, which generates no text"):
            client.submit([1, 2, 3], SamplingParams(max_tokens=1))
        with pytest.raises(ContextOverflow, match="101 tokens"):
            await client.embed([1] * 101, Pooling.MEAN)
        with pytest.raises(InvalidParameter, match="2 or more"):
            await client.embed([1], Pooling.MEAN)
        with pytest.raises(InvalidParameter, match="token id 64"):
            await client.embed([1, 64], Pooling.MEAN)
        assert (await client.embed([1] * 100, Pooling.MEAN)).shape == (64,)


async def test_few_texts_at_once_that_fill_more_tiles(folders: Path) -> None:
    async with engine_of(folders / "bert", "native", max_num_seqs=2) as client:
        texts = [GOLDENS["bert"]["texts"][-1], GOLDENS["bert"]["texts"][-2]]
        for text, vector in zip(texts, await embed_all(client, texts, Pooling.MEAN), strict=True):
            np.testing.assert_allclose(vector, text["mean"], rtol=0, atol=2e-5)


async def test_an_encoder_sleeps_and_wakes(folders: Path) -> None:
    async with engine_of(folders / "bert", "native") as client:
        before = await client.embed([2, 3, 4], Pooling.MEAN)
        await client.lifecycle.sleep(forget_weights=True)
        waiting = asyncio.ensure_future(client.embed([2, 3, 4], Pooling.MEAN))
        await client.lifecycle.wake()
        assert np.array_equal(await waiting, before)


@pytest.mark.parametrize(
    "setting", [{"tensor_parallel": 2}, {"prefix_cache_dir": "/nowhere"}], ids=lambda setting: next(iter(setting))
)
def test_settings_that_an_encoder_cannot_have(folders: Path, setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(setting))} is .*, which an encoder cannot have"):
        EngineClient.load(folders / "bert", EngineConfig(**setting), lambda stage, done, total: None)


@pytest.mark.parametrize("name", ["bert", "xlm_roberta_classifier"])
async def test_a_gguf_file_computes_the_same(folders: Path, tmp_path: Path, name: str) -> None:
    """With the names of the gguf package; the converter drops the rows of positions that no token has."""
    golden = GOLDENS[name]
    path = write_gguf(tmp_path / "model.gguf", golden)
    texts = golden["texts"]
    async with engine_of(path, "native") as client:
        got = await embed_all(client, texts, Pooling.CLS)
    for text, vector in zip(texts, got, strict=True):
        np.testing.assert_allclose(vector, text.get("scores", text.get("cls")), rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", sorted(GGUF_ARCHITECTURES.keys() - {"bert", "xlm_roberta_classifier"}))
def test_a_gguf_file_is_the_same_model(tmp_path: Path, name: str) -> None:
    """Its configuration and its weights are those of the folder, without the biases of experts that it leaves out."""
    (tmp_path / "folder").mkdir()
    write_golden(tmp_path / "folder", in_gguf(GOLDENS[name]))
    opened = [open_model(path) for path in (tmp_path / "folder", write_gguf(tmp_path / "model.gguf", GOLDENS[name]))]
    shown = []
    for each in opened:
        fields = vars(each.config) | {"prefix": "", "rotary": (), "head_pooling": None}
        fields["projections"] = [
            projection._replace(in_folder="", in_gguf="") for projection in each.config.projections
        ]
        shown.append(fields)
    assert shown[0] == shown[1]
    assert opened[0].model.num_labels == len(GOLDENS[name]["texts"][0].get("scores", ()))
    for one, other in zip(*(each.config.rotary for each in opened), strict=True):
        np.testing.assert_allclose(one.frequencies, other.frequencies, rtol=1e-6)
    assert_same_weights(*opened)


def assert_same_weights(first: OpenModel, second: OpenModel) -> None:
    one, other = (weights_of(each) for each in (first, second))
    assert one.keys() == other.keys()
    for leaf, values in one.items():
        np.testing.assert_array_equal(values, other[leaf], err_msg=leaf)


def weights_of(opened: OpenModel) -> dict[str, Any]:
    return opened.load(ArrayLayout(), Precision("float32", None), lambda *step: None).params


def in_gguf(golden: dict[str, Any]) -> dict[str, Any]:
    """The golden with the tensors that a GGUF file has."""
    return {**golden, "left_out": [name for name in golden["shapes"] if name.endswith(".mlp.experts.bias")]}


def usual_config(golden: dict[str, Any]) -> dict[str, Any]:
    """The configuration with the names that most encoders give its fields."""
    config = golden["config"]
    if "n_embd" not in config:
        return config
    return {
        **config, "hidden_size": config["n_embd"], "intermediate_size": config["n_inner"], "rope_parameters": {
            "rope_theta": config["rotary_emb_base"]
        }, "num_attention_heads": config["n_head"], "num_hidden_layers": config["n_layer"],
        "max_position_embeddings": config["n_positions"], "layer_norm_eps": config["layer_norm_epsilon"],
    }  # fmt: skip


def add_experts(writer: GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_moe_every_n_layers(config["moe_every_n_layers"])
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["moe_top_k"])


def converted(name: str, values: np.ndarray, config: dict[str, Any]) -> tuple[str, np.ndarray]:
    """Experts by themselves, of all in one matrix; heads of Llama's queries and keys with adjacent features."""
    if ".mlp.experts.mlp." in name:
        by_expert = values.reshape(config["num_experts"], -1, values.shape[1])
        return f"{name}.weight", by_expert.swapaxes(1, 2) if name.endswith("w2") else by_expert
    if config["model_type"] == "llama_bidirec" and (".q_proj." in name or ".k_proj." in name):
        size = config["hidden_size"] // config["num_attention_heads"]
        return name, values.reshape(-1, 2, size // 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
    return name, values


def write_gguf(path: Path, golden: dict[str, Any], more: Mapping[str, np.ndarray] = MappingProxyType({})) -> Path:
    """What the converter makes of a golden; `more` are further tensors, by their names in the file."""
    config = usual_config(golden)
    architecture = GGUF_ARCHITECTURES[golden["name"]]
    stated = "llama-embed" if golden["name"] == "llama_embed" else MODEL_ARCH_NAMES[architecture]
    writer = GGUFWriter(path, stated)
    if "moe_every_n_layers" in config:
        add_experts(writer, config)
    first = config["pad_token_id"] + 1 if "roberta" in config["model_type"] else 0
    is_gemma, is_decoder = config["model_type"] == "gemma3_text", "num_key_value_heads" in config
    writer.add_context_length(config["max_position_embeddings"] - first)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_block_count(config["num_hidden_layers"])
    if is_decoder:
        writer.add_head_count_kv(config["num_key_value_heads"])
        if "head_dim" in config:
            writer.add_key_length(config["head_dim"])
            writer.add_value_length(config["head_dim"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    else:
        writer.add_layer_norm_eps(config.get("layer_norm_eps", config.get("norm_eps")))
        writer.add_causal_attention(False)
    rotary = config.get("rope_parameters") or {}
    if "rope_theta" in rotary:
        writer.add_rope_freq_base(rotary["rope_theta"])
    if "full_attention" in rotary:
        writer.add_rope_freq_base(rotary["full_attention"]["rope_theta"])
        writer.add_rope_freq_base_swa(rotary["sliding_attention"]["rope_theta"])
        writer.add_sliding_window(config.get("local_attention", config.get("sliding_window")))
        writer.add_sliding_window_pattern(3)
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    for folder_name, tensor in tensors_of(in_gguf(golden)).items():
        name, values = converted(folder_name, tensor, config)
        short = "cls.output.weight" if name == "score.weight" else name.removeprefix("roberta.").removeprefix("model.")
        if short.startswith("pooler."):
            continue
        if architecture is MODEL_ARCH.MODERN_BERT and short.startswith("classifier."):
            short = short.replace("classifier.", "classifier.out_proj.")
        known = f"model.{short}" if is_decoder and not short.startswith("cls.") else short
        stored = names.get_name(known, try_suffixes=(".weight", ".bias")) or known
        if is_gemma and values.ndim == 1:
            values = values + np.float32(1)  # the converter adds it to the weights of norms
        writer.add_tensor(stored, np.ascontiguousarray(values[first:] if "position_emb" in name else values))
    for name, values in more.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


async def test_the_head_of_a_decoder(folders: Path) -> None:
    """It reads the last token, so that texts that begin alike share pages."""
    golden = GOLDENS[DECODER]
    async with engine_of(
        folders / DECODER, "native", page_size=16, max_num_seqs=1, max_num_batched_tokens=64, num_pages=64
    ) as client:
        info = client.model_info
        assert (info.is_encoder, info.num_labels, info.head_pooling) == (False, 2, Pooling.LAST)
        vectors = [await client.embed(text["token_ids"], Pooling.LAST) for text in golden["texts"]]
        for text, vector in zip(golden["texts"], vectors, strict=True):
            np.testing.assert_allclose(vector, text["scores"], rtol=0, atol=2e-5)
        assert client.stats().prefix_cache_hits == 0
        for text, vector in zip(golden["texts"], vectors, strict=True):
            assert np.array_equal(await client.embed(text["token_ids"], Pooling.LAST), vector)
        # Of 2, 3, 17, 64, 65 and 130 tokens whole pages, without that of the last token.
        assert client.stats().prefix_cache_hits == 0 + 0 + 16 + 48 + 64 + 128


async def test_each_token_of_a_decoders_text_has_its_own(folders: Path) -> None:
    """A text of several steps; its head is linear, and reads each of them."""
    golden = GOLDENS[DECODER]
    async with engine_of(folders / DECODER, "native", max_num_seqs=2, max_num_batched_tokens=64) as client:
        for text in golden["texts"]:
            token_ids = text["token_ids"]
            own, last, mean = [
                await client.embed(token_ids, each) for each in (Pooling.NONE, Pooling.LAST, Pooling.MEAN)
            ]
            assert own.shape == (len(token_ids), len(last))
            assert np.array_equal(own[-1], last)
            np.testing.assert_allclose(own.mean(axis=0), mean, rtol=0, atol=2e-5)


def test_what_a_decoder_cannot_have_behind_it(tmp_path: Path) -> None:
    write_dense(tmp_path, np.zeros((96, 64), np.float32), np.zeros(96, np.float32), np.zeros((32, 96), np.float32))
    write_golden(tmp_path, GOLDENS[DECODER])
    with pytest.raises(ModelError, match="biases or tanh, which is not served behind a decoder"):
        open_model(tmp_path)


async def test_dense_layers_behind_the_pooling(folders: Path, tmp_path: Path) -> None:
    """Of a text of several tiles too, whose mean is complete before it goes through them."""
    texts = GOLDENS["bert"]["texts"]
    rng = np.random.default_rng(5)
    first, bias = (rng.normal(size=shape).astype(np.float32) / 8 for shape in ((96, 64), (96,)))
    second = rng.normal(size=(32, 96)).astype(np.float32) / 8
    write_dense(tmp_path, first, bias, second)
    write_golden(tmp_path, GOLDENS["bert"])
    async with engine_of(tmp_path, "native", max_num_seqs=1) as client:
        got = await embed_all(client, texts, Pooling.MEAN)
    for text, vector in zip(texts, got, strict=True):
        expected = second @ np.tanh(first @ np.array(text["mean"], np.float32) + bias)
        np.testing.assert_allclose(vector, expected, rtol=0, atol=2e-5)


def write_dense(path: Path, first: np.ndarray, bias: np.ndarray, second: np.ndarray) -> None:
    """Two modules, as sentence-transformers writes them; the first has a bias and tanh."""
    places = ("", "1_Pooling", "2_Dense", "3_Dense")
    kinds = ("Transformer", "Pooling", "Dense", "Dense")
    modules = [{"path": place, "type": f"models.{kind}"} for place, kind in zip(places, kinds, strict=True)]
    (path / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    for place, weight, function, tensors in (
        ("2_Dense", first, "torch.nn.modules.activation.Tanh", {"linear.bias": bias}),
        ("3_Dense", second, "torch.nn.modules.linear.Identity", {}),
    ):
        (path / place).mkdir()
        outputs, inputs = weight.shape
        config = {
            "in_features": inputs, "out_features": outputs, "bias": bool(tensors), "activation_function": function,
        }  # fmt: skip
        (path / place / "config.json").write_text(json.dumps(config), encoding="utf-8")
        save_file({"linear.weight": weight, **tensors}, path / place / "model.safetensors")


def test_dense_layers_of_a_gguf_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    first, second = (rng.normal(size=shape).astype(np.float32) for shape in ((96, 64), (32, 96)))
    more = {"dense_2.weight": first, "dense_3.weight": second}
    opened = open_model(write_gguf(tmp_path / "model.gguf", GOLDENS["gemma_embedding"], more))
    assert [tuple(each[:2]) for each in opened.config.projections] == [(64, 96), (96, 32)]
    weights = weights_of(opened)
    for index, expected in enumerate((first, second)):
        np.testing.assert_array_equal(weights[f"projection_{index}"][0].T, expected)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"in_features": 65}, "in_features is 65; it must be 64"),
        ({"out_features": 1 << 20}, "out_features"),
        ({"activation_function": "torch.nn.ReLU"}, "activation_function"),
        ({"bias": False}, "linear.bias"),
        ({"use_residual": True}, "use_residual"),
        ({"module_input_name": "token_embeddings"}, "module_input_name"),
    ],
)
def test_dense_layers_that_are_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    zeros = np.zeros((96, 64), np.float32), np.zeros(96, np.float32), np.zeros((32, 96), np.float32)
    write_dense(tmp_path, *zeros)
    write_golden(tmp_path, GOLDENS["bert"])
    path = tmp_path / "2_Dense" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change), encoding="utf-8")
    with pytest.raises(ModelError, match=words):
        open_model(tmp_path)


def test_a_dense_layer_with_tanh_does_not_follow_a_normalisation(tmp_path: Path) -> None:
    zeros = np.zeros((96, 64), np.float32), np.zeros(96, np.float32), np.zeros((32, 96), np.float32)
    write_dense(tmp_path, *zeros)
    write_golden(tmp_path, GOLDENS["bert"])
    path = tmp_path / "modules.json"
    modules, normalize = json.loads(path.read_text()), {"path": "4_Normalize", "type": "models.Normalize"}
    for at, is_refused in ((2, True), (3, False), (4, False)):  # before both layers, before the linear one, at the end
        path.write_text(json.dumps([*modules[:at], normalize, *modules[at:]]), encoding="utf-8")
        if is_refused:
            with pytest.raises(ModelError, match="behind Normalize"):
                open_model(tmp_path)
        else:
            assert len(open_model(tmp_path).config.projections) == 2


def write_golden(path: Path, golden: dict[str, Any], changes: Mapping[str, Any] = MappingProxyType({})) -> None:
    (path / "config.json").write_text(json.dumps(golden["config"] | changes), encoding="utf-8")
    save_file(tensors_of(golden), path / "model.safetensors")


def test_a_modern_bert_of_one_layer_has_no_norm_before_attention(tmp_path: Path) -> None:
    golden = GOLDENS["modern_bert"]
    config = golden["config"] | {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    kept = {name: each for name, each in tensors_of(golden).items() if "layers." not in name or "layers.0." in name}
    save_file(kept, tmp_path / "model.safetensors")
    assert "attention_norm" not in weights_of(open_model(tmp_path))


def test_a_configuration_as_nomic_published_it(folders: Path, tmp_path: Path) -> None:
    """By other names, with positions that it was not trained for, is the same model."""
    config = GOLDENS["nomic_bert"]["config"]
    published = {
        "architectures": ["NomicBertModel"], "model_type": "nomic_bert", "vocab_size": config["vocab_size"],
        "n_embd": config["hidden_size"], "n_layer": config["num_hidden_layers"],
        "n_head": config["num_attention_heads"], "n_inner": config["intermediate_size"], "n_positions": 8192,
        "max_trained_positions": config["max_position_embeddings"], "layer_norm_epsilon": config["layer_norm_eps"],
        "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None, "rotary_scaling_factor": None, "activation_function": "swiglu",
        "prenorm": False, "parallel_block": False, "use_rms_norm": False, "causal": False, "qkv_proj_bias": False,
        "mlp_fc1_bias": False, "mlp_fc2_bias": False, "type_vocab_size": 2,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(published), encoding="utf-8")
    save_file(tensors_of(GOLDENS["nomic_bert"]), tmp_path / "model.safetensors")
    assert open_model(tmp_path).model == open_model(folders / "nomic_bert").model
    (tmp_path / "config.json").write_text(json.dumps(published | {"num_experts": 8}), encoding="utf-8")
    with pytest.raises(ModelError, match="num_experts is 8"):
        open_model(tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("bert", {"hidden_act": "relu"}, "hidden_act"),
        ("bert", {"is_decoder": True}, "is_decoder"),
        ("bert", {"num_attention_heads": 3}, "num_attention_heads"),
        ("bert", {"max_position_embeddings": 149}, "position_embeddings"),
        ("nomic_bert", {"hidden_act": "gelu"}, "hidden_act"),
        ("nomic_bert_moe", {"qkv_proj_bias": False}, "qkv_proj_bias is false"),
        ("nomic_bert_moe", {"activation_function": "swiglu"}, "activation_function"),
        ("nomic_bert_moe", {"moe_every_n_layers": 1}, "moe_every_n_layers is 1"),
        ("nomic_bert_moe", {"moe_top_k": 7}, "a token cannot pick 7 of 6 experts"),
        ("nomic_bert_moe", {"num_experts": 1 << 31}, "num_experts is 2147483648"),
        ("nomic_bert_moe", {"num_shared_experts": 1}, "num_shared_experts is 1"),
        ("llama_embed", {"model_type": "llama"}, "model_type"),
        ("modern_bert", {"mlp_bias": True}, "mlp_bias"),
        ("modern_bert", {"layer_types": ["full_attention"]}, "layer_types"),
        ("modern_bert", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling"),
        ("modern_bert_classifier", {"classifier_pooling": "max"}, "classifier_pooling"),
        ("modern_bert_classifier", {"classifier_activation": "relu"}, "classifier_activation"),
        ("gemma_embedding", {"use_bidirectional_attention": False}, "use_bidirectional_attention"),
        (DECODER, {"is_causal": False}, "is_causal"),
    ],
)
def test_what_is_not_served_is_refused_by_its_field(
    tmp_path: Path, name: str, change: dict[str, Any], words: str
) -> None:
    write_golden(tmp_path, GOLDENS[name], change)
    with pytest.raises(ModelError, match=words):
        open_model(tmp_path)
