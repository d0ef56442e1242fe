"""Makes the JSON files of this folder: what transformers computes of prompts with pictures, with tiny models.

In the virtual environment of tests/golden/architectures/make.py, with Pillow, num2words and torchvision:

    goldenv/bin/python -m tests.golden.pictures.make [NAME...]
"""

# mypy: disable-error-code="import-not-found"
# What is imported here is installed in another virtual environment.

from __future__ import annotations

import base64
import json
import sys
import tempfile
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from PIL import Image
from safetensors.torch import save_file
from transformers.image_utils import IMAGENET_DEFAULT_MEAN as IMAGENET_MEAN
from transformers.image_utils import IMAGENET_DEFAULT_STD as IMAGENET_STD
from transformers.image_utils import OPENAI_CLIP_MEAN as CLIP_MEAN
from transformers.image_utils import OPENAI_CLIP_STD as CLIP_STD
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.lfm2_vl.image_processing_lfm2_vl import Lfm2VlImageProcessor
from transformers.models.lfm2_vl.processing_lfm2_vl import Lfm2VlProcessor
from transformers.models.llama4.image_processing_llama4 import Llama4ImageProcessor
from transformers.models.llama4.processing_llama4 import Llama4Processor
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
    select_best_resolution,
)
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

from tests.golden.architectures.configs import CONFIGS
from tests.golden.architectures.make import FILE, LEAST_DIFFERENT, LEAST_GAP, NOT_OF_THE_MODEL, write_untrained
from tests.golden.architectures.tiny_weights import tiny_prompt, tiny_weights
from tests.golden.pictures.tiny_folder import write_tiny_folder
from tests.golden.pictures.tiny_pictures import (
    FRAMES_A_SECOND,
    GRIDS,
    MAPS,
    ODD_SIZES,
    VIDEOS,
    tiny_patches,
    tiny_picture,
    tiny_tiles,
    tiny_video,
    tokens_of_map,
    waves,
)

HERE = Path(__file__).parent
NUM_OUTPUT_TOKENS = 8
NUM_SEEDS = 100
# Each prompt: lengths of texts, and the seeds of the pictures between them.
PROMPTS = [[7, "a", 5], [0, "b", 3, "a", 40], [30, "c", 1, "d", 2, "c", 1], [70, "e", 30]]


class Family(NamedTuple):
    """A tiny model that sees."""

    config: str  # of tests/golden/architectures/configs.py
    vision: Mapping[str, Any]  # changes of its vision_config
    changes: Mapping[str, Any]  # of its configuration
    image_token: int
    num_tokens: Callable[[str], int]  # of a picture by its name
    inputs: Callable[[Any, list[str], torch.Tensor], dict[str, Any]]  # of a model, names of pictures and token ids
    tokens: Callable[[str, int], list[int]] | None = None  # of a picture by its name, where some are others


def square_pixels(model: Any, names: list[str]) -> torch.Tensor:
    """The values of pictures of one size."""
    size = model.config.vision_config.image_size
    pixels = np.stack([tiny_picture(name, size) for name in names]).transpose(0, 3, 1, 2)
    return torch.from_numpy(pixels.astype(np.float32) / np.float32(127.5) - 1)


def pixels_of_llama4(model: Any, names: list[str]) -> torch.Tensor:
    """The same, of which its processor rounds each step to bfloat16."""
    size = model.config.vision_config.image_size
    pixels = torch.from_numpy(np.stack([tiny_picture(name, size) for name in names]).transpose(0, 3, 1, 2))
    return (((pixels.to(torch.bfloat16) * (1 / 255)) - 0.5) / 0.5).float()


def inputs_of_qwen(model: Any, names: list[str], ids: torch.Tensor) -> dict[str, Any]:
    """Patches of pictures of any size, each of which is a video of two equal frames."""
    vision = model.config.vision_config
    merge = vision.spatial_merge_size
    patches = np.concatenate([tiny_patches(name, vision.patch_size, merge) for name in names]).astype(np.float32)
    is_early = model.config.model_type == "qwen2_5_vl"
    mean, deviation = (CLIP_MEAN, CLIP_STD) if is_early else ([0.5] * 3, [0.5] * 3)
    values = (patches / 255 - np.array(mean, np.float32)) / np.array(deviation, np.float32)
    frames = np.repeat(values.transpose(0, 3, 1, 2)[:, :, None], vision.temporal_patch_size, axis=2)
    grids = torch.tensor([[1, merge * rows, merge * columns] for rows, columns in map(GRIDS.__getitem__, names)])
    kinds = (ids == model.config.image_token_id).int()
    positions, _ = model.model.get_rope_index(ids, mm_token_type_ids=kinds, image_grid_thw=grids)
    return {
        "pixel_values": torch.from_numpy(frames.reshape(len(frames), -1)),
        "image_grid_thw": grids,
        "mm_token_type_ids": kinds,
        "position_ids": positions,
    }


def inputs_of_gemma4(model: Any, names: list[str], ids: torch.Tensor) -> dict[str, Any]:
    """Patches of pictures of any size with their columns and rows, as many of each picture."""
    vision = model.config.vision_config
    patch, merge = vision.patch_size, vision.pooling_kernel_size
    most = merge**2 * max(map(squares_of, names))
    values = np.zeros((len(names), most, 3 * patch**2), np.float32)
    places = np.full((len(names), most, 2), -1)
    for at, name in enumerate(names):
        patches = tiny_patches(name, patch, merge).astype(np.float32) / 255
        values[at, : len(patches)] = patches.reshape(len(patches), -1)
        square, within = np.divmod(np.arange(len(patches)), merge**2)
        row, column = np.divmod(square, GRIDS[name][1])
        places[at, : len(patches), 0] = column * merge + within % merge
        places[at, : len(patches), 1] = row * merge + within // merge
    return {"pixel_values": torch.from_numpy(values), "image_position_ids": torch.from_numpy(places)}


def inputs_of_pixtral(model: Any, names: list[str], ids: torch.Tensor) -> dict[str, Any]:
    """Pictures of any size, padded to the largest one."""
    patch, merge = model.config.vision_config.patch_size, model.config.spatial_merge_size
    sizes = [tuple(each * merge * patch for each in GRIDS[name]) for name in names]
    values = np.zeros((len(names), 3, *map(max, zip(*sizes, strict=True))), np.float32)
    for at, (name, (height, width)) in enumerate(zip(names, sizes, strict=True)):
        rows, columns = GRIDS[name]
        squares = tiny_patches(name, patch, merge).reshape(rows, columns, merge, merge, patch, patch, 3)
        picture = squares.transpose(0, 2, 4, 1, 3, 5, 6).reshape(height, width, 3).astype(np.float32)
        colours = (picture / 255 - np.array(CLIP_MEAN, np.float32)) / np.array(CLIP_STD, np.float32)
        values[at, :, :height, :width] = colours.transpose(2, 0, 1)
    return {"pixel_values": torch.from_numpy(values), "image_sizes": torch.tensor(sizes)}


def row_ends(name: str, token: int) -> list[int]:
    """The tokens of a picture of Mistral 3, each row with one behind it."""
    rows, columns = GRIDS[name]
    return ([token] * columns + [253]) * (rows - 1) + [token] * columns + [254]


def inputs_of_internvl(model: Any, names: list[str], ids: torch.Tensor) -> dict[str, Any]:
    """Tiles of one size."""
    size = model.config.vision_config.image_size[0]
    pixels = np.stack([tiny_picture(name, size) for name in names]).astype(np.float32)
    values = (pixels / 255 - np.array(IMAGENET_MEAN, np.float32)) / np.array(IMAGENET_STD, np.float32)
    return {"pixel_values": torch.from_numpy(values.transpose(0, 3, 1, 2))}


def inputs_of_lfm2(model: Any, names: list[str], ids: torch.Tensor) -> dict[str, Any]:
    """Patches of pictures of any size in the order of rows, as many of each picture."""
    patch, merge = model.config.vision_config.patch_size, model.config.downsample_factor
    most = merge**2 * max(map(squares_of, names))
    values, mask = np.zeros((len(names), most, 3 * patch**2), np.float32), np.zeros((len(names), most), int)
    for at, name in enumerate(names):
        rows, columns = GRIDS[name]
        squares = tiny_patches(name, patch, merge).reshape(rows, columns, merge, merge, patch, patch, 3)
        patches = squares.transpose(0, 2, 1, 3, 4, 5, 6).reshape(-1, 3 * patch**2).astype(np.float32)
        values[at, : len(patches)] = patches / np.float32(127.5) - 1
        mask[at, : len(patches)] = 1
    shapes = [[each * merge for each in GRIDS[name]] for name in names]
    return {
        "pixel_values": torch.from_numpy(values),
        "pixel_attention_mask": torch.from_numpy(mask),
        "spatial_shapes": torch.tensor(shapes),
    }


def inputs_of_llava_next(model: Any, names: list[str], ids: torch.Tensor) -> dict[str, Any]:
    """Maps of tiles, as many of each picture."""
    size = model.config.vision_config.image_size
    tiles = [tiny_tiles(name, size) for name in names]
    values = np.zeros((len(names), max(map(len, tiles)), 3, size, size), np.float32)
    for at, pixels in enumerate(tiles):
        colours = (pixels.astype(np.float32) / 255 - np.array(CLIP_MEAN, np.float32)) / np.array(CLIP_STD, np.float32)
        values[at, : len(pixels)] = colours.transpose(0, 3, 1, 2)
    sizes = torch.tensor([MAPS[name][0] for name in names])
    return {"pixel_values": torch.from_numpy(values), "image_sizes": sizes}


def text_with_axes(config: str, sections: list[int]) -> dict[str, Any]:
    """The fields of a text model of configs.py, with so many pairs of features for each axis of M-RoPE."""
    text = CONFIGS[config][1]["text_config"]
    return {**text, "rope_parameters": {**text["rope_parameters"], "mrope_section": sections}}


def text_that_sees_both_ways(config: str) -> dict[str, Any]:
    """The fields of a text model of configs.py without embeddings by layer, in which pictures see all of themselves."""
    text = CONFIGS[config][1]["text_config"]
    return {**text, "use_bidirectional_attention": "vision", "hidden_size_per_layer_input": 0}


def squares_of(name: str) -> int:
    """Positions of a picture of any size."""
    rows, columns = GRIDS[name]
    return rows * columns


FAMILIES = {
    "gemma3": Family(
        "gemma3_pictures",
        {"image_size": 64, "num_hidden_layers": 2, "intermediate_size": 48},
        {"mm_tokens_per_image": 16},
        252,
        lambda name: 16,
        lambda model, names, ids: {
            "pixel_values": square_pixels(model, names),
            "token_type_ids": (ids == 252).long(),
        },
    ),
    # The tiles of a picture are pictures here.
    "smolvlm": Family(
        "smolvlm", {}, {}, 252, lambda name: 4,
        lambda model, names, ids: {"pixel_values": square_pixels(model, names)[None]},
    ),
    "qwen2_5_vl": Family("qwen2_5_vl", {}, {}, 250, squares_of, inputs_of_qwen),
    "qwen3_vl": Family("qwen3_vl", {}, {}, 250, squares_of, inputs_of_qwen),
    "gemma4": Family(
        "gemma4_pictures", {"num_hidden_layers": 2, "use_clipped_linears": True, "standardize": True}, {}, 250,
        squares_of, inputs_of_gemma4,
    ),
    "gemma4_both": Family(
        "gemma4_pictures", {}, {"text_config": text_that_sees_both_ways("gemma4_pictures")}, 250, squares_of,
        lambda model, names, ids: {
            **inputs_of_gemma4(model, names, ids), "mm_token_type_ids": (ids == 250).int(),
        },
    ),
    "mistral3": Family("mistral3", {}, {}, 252, squares_of, inputs_of_pixtral, row_ends),
    "llama4": Family(
        "llama4_pictures", {}, {}, 252, lambda name: 4,
        lambda model, names, ids: {"pixel_values": pixels_of_llama4(model, names)},
    ),
    "internvl": Family("internvl", {}, {}, 252, lambda name: 4, inputs_of_internvl),
    "llava_next": Family("llava_next", {}, {}, 252, lambda name: tokens_of_map(name, 3), inputs_of_llava_next),
    "lfm2_vl": Family("lfm2_vl", {}, {}, 252, squares_of, inputs_of_lfm2),
    "qwen3_vl_moe": Family("qwen3_vl_moe", {}, {}, 250, squares_of, inputs_of_qwen),
    "qwen3_5": Family(
        "qwen3_5_pictures", {"depth": 2, "patch_size": 4, "num_position_embeddings": 36},
        {"text_config": text_with_axes("qwen3_5_pictures", [4, 2, 2])}, 250, squares_of, inputs_of_qwen,
    ),
    "qwen3_5_moe": Family(
        "qwen3_5_moe_pictures", {"patch_size": 4, "num_position_embeddings": 36}, {}, 250, squares_of, inputs_of_qwen,
    ),
}  # fmt: skip


def make(name: str, family: Family) -> None:
    """Makes one file, with weights whose greedy tokens are no near-ties."""
    class_name, arguments = CONFIGS[family.config]
    arguments = {**arguments, "vision_config": {**arguments["vision_config"], **family.vision}, **family.changes}
    model_class = getattr(transformers, class_name)
    with tempfile.TemporaryDirectory() as folder:
        shapes, config = write_untrained(class_name, arguments, Path(folder))
        for seed in range(NUM_SEEDS):
            tensors = {
                name: torch.from_numpy(values) for name, values in tiny_weights(class_name, shapes, seed).items()
            }
            save_file(tensors, f"{folder}/{FILE}", metadata={"format": "pt"})
            model = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
            entries = [outputs(model, prompt, family) for prompt in PROMPTS]
            if all(entries):
                break
        else:
            raise SystemExit("every seed has near-ties")
    content = {
        "transformers": transformers.__version__,
        "config": {key: value for key, value in config.items() if key not in NOT_OF_THE_MODEL},
        "seed": seed,
        "shapes": shapes,
        "prompts": entries,
    }
    (HERE / f"{name}.json").write_text(json.dumps(content) + "\n", encoding="utf-8")
    print(f"{name}: seed {seed}, smallest gap {min(entry['least_gap'] for entry in entries)}")


def outputs(model: Any, parts: list[Any], family: Family) -> dict[str, Any]:
    """Greedy tokens of a prompt and the first logits; empty where the outputs are no good test."""
    prompt: list[int] = []
    pictures: list[tuple[str, int]] = []
    for part in parts:
        if isinstance(part, str):
            pictures.append((part, len(prompt)))
            if family.tokens is None:
                prompt += [family.image_token] * family.num_tokens(part)
            else:
                prompt += family.tokens(part, family.image_token)
        else:
            prompt += tiny_prompt(part, 250)
    names = [name for name, _ in pictures]
    token_ids, logits, gaps = list(prompt), [], []
    for _ in range(NUM_OUTPUT_TOKENS):
        ids = torch.tensor([token_ids])
        with torch.inference_mode():
            row = model(input_ids=ids, use_cache=False, **family.inputs(model, names, ids)).logits[0, -1]
        row = row.clone()
        best, second = torch.topk(row, 2).values.tolist()
        gaps.append(best - second)
        logits.append([round(value, 5) for value in row.tolist()])
        token_ids.append(int(row.argmax()))
        if token_ids[-1] == family.image_token:
            return {}
    return case_of(prompt, {"pictures": pictures}, token_ids, gaps, logits)


def case_of(
    prompt: list[int], seen: dict[str, Any], token_ids: list[int], gaps: list[float], logits: list[list[float]]
) -> dict[str, Any]:
    """What the file has of one prompt; nothing where a token was chosen too narrowly, or they are too much alike."""
    made = token_ids[len(prompt) :]
    if min(gaps) < LEAST_GAP or len(set(made)) < LEAST_DIFFERENT:
        return {}
    return {
        "prompt_token_ids": prompt,
        **seen,
        "output_token_ids": made,
        "least_gap": round(min(gaps), 5),
        "logits": logits[:2],
    }


def make_videos(name: str) -> None:
    """Makes the file of prompts with videos for a model of which there is a file with pictures."""
    known = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))
    class_name = known["config"]["architectures"][0]
    with tempfile.TemporaryDirectory() as folder:
        write_tiny_folder(Path(folder), known)
        model_class = getattr(transformers, class_name)
        model = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        entries = []
        for before, parts in ((7, ["v"]), (3, ["a", "w"]), (40, ["w", "b"])):
            made = (outputs_of_video(model, before, parts, behind) for behind in range(1, NUM_SEEDS))
            entries.append(next(entry for entry in made if entry))
    content = {"transformers": transformers.__version__, "prompts": entries}
    (HERE / f"{name}_videos.json").write_text(json.dumps(content) + "\n", encoding="utf-8")
    print(f"{name}_videos: smallest gap {min(entry['least_gap'] for entry in entries)}")


def outputs_of_video(model: Any, before: int, parts: list[str], behind: int) -> dict[str, Any]:
    """As `outputs`, of a text, pictures and videos with texts between them, and a text."""
    config, vision = model.config, model.config.vision_config
    is_early, merge = config.model_type == "qwen2_5_vl", vision.spatial_merge_size
    prompt, placed, kinds = tiny_prompt(before, 240), [], []
    grids: dict[str, list[list[int]]] = {"image": [], "video": []}
    pixels: dict[str, list[np.ndarray]] = {"image": [], "video": []}
    for name in parts:
        kind = "video" if name in VIDEOS else "image"
        token = config.video_token_id if kind == "video" else config.image_token_id
        if kind == "image":
            moments = [np.repeat(tiny_patches(name, vision.patch_size, merge)[:, None], 2, axis=1)]
            rows, columns = GRIDS[name]
        else:
            moments = tiny_video(name, vision.patch_size, merge)
            rows, columns, _ = VIDEOS[name]
        for at, patches in enumerate(moments):
            if at and not is_early:
                prompt += tiny_prompt(3, 240)
            interval = int(at * vision.tokens_per_second * 2 / FRAMES_A_SECOND) if is_early else 0
            placed.append([name, at, len(prompt), interval if at and is_early else None])
            prompt += [token] * (rows * columns)
            pixels[kind].append(patches)
        grids[kind].append([len(moments), merge * rows, merge * columns])
        prompt += tiny_prompt(2, 240)
    prompt += tiny_prompt(behind, 240)
    mean, deviation = (CLIP_MEAN, CLIP_STD) if is_early else ([0.5] * 3, [0.5] * 3)
    inputs = {}
    for kind, name in (("image", "pixel_values"), ("video", "pixel_values_videos")):
        if pixels[kind]:
            values = np.concatenate(pixels[kind]).astype(np.float32) / 255
            values = (values - np.array(mean, np.float32)) / np.array(deviation, np.float32)
            inputs[name] = torch.from_numpy(values.transpose(0, 4, 1, 2, 3).reshape(len(values), -1))
            inputs[f"{kind}_grid_thw"] = torch.tensor(grids[kind])
    seconds = torch.tensor([2 / FRAMES_A_SECOND] * len(grids["video"]))
    token_ids, logits, gaps = list(prompt), [], []
    for _ in range(NUM_OUTPUT_TOKENS):
        ids = torch.tensor([token_ids])
        kinds = (ids == config.image_token_id).int() + 2 * (ids == config.video_token_id).int()
        of_grids = {key: value for key, value in inputs.items() if key.endswith("_thw")}
        positions, _ = model.model.get_rope_index(
            ids, mm_token_type_ids=kinds, **of_grids, **({"second_per_grid_ts": seconds} if is_early else {})
        )
        with torch.inference_mode():
            row = (
                model(input_ids=ids, use_cache=False, **inputs, mm_token_type_ids=kinds, position_ids=positions)
                .logits[0, -1]
                .clone()
            )
        best, second = torch.topk(row, 2).values.tolist()
        gaps.append(best - second)
        logits.append([round(value, 5) for value in row.tolist()])
        token_ids.append(int(row.argmax()))
        if token_ids[-1] in (config.image_token_id, config.video_token_id):
            return {}
    return case_of(prompt, {"moments": placed}, token_ids, gaps, logits)


def make_tiles() -> None:
    """Makes the file of SmolVLM's image processor: the tiles of pictures of odd sizes, and their texts."""
    edges = {"size": {"longest_edge": 48}, "max_image_size": {"longest_edge": 16}}
    entries = []
    for is_cut in (True, False):
        processor = SmolVLMImageProcessorPil(**edges, do_image_splitting=is_cut)
        for width, height in ODD_SIZES if is_cut else ODD_SIZES[3:5]:
            made = processor([Image.fromarray(waves(width, height))], return_row_col_info=True, return_tensors="np")
            values = made["pixel_values"][0].transpose(0, 2, 3, 1)
            pixels = np.rint((values + 1) * 127.5).astype(np.uint8)
            assert np.abs(pixels / 127.5 - 1 - values).max() < 1e-6
            rows, columns = made["rows"][0][0], made["cols"][0][0]
            text = get_image_prompt_string(rows, columns, 1, "<fake_token_around_image>", "<image>", "<global-img>")
            entries.append(
                {
                    "size": [width, height],
                    "is_cut": is_cut,
                    "rows": rows,
                    "columns": columns,
                    "text": text,
                    "pixels": base64.b64encode(zlib.compress(pixels.tobytes(), 9)).decode(),
                }
            )
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    (HERE / "smolvlm_tiles.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"smolvlm_tiles: {sum(entry['rows'] * entry['columns'] + 1 for entry in entries)} tiles")


def make_crops() -> None:
    """Makes the file of Gemma 3's image processor: pictures of odd sizes with their crops."""
    entries = []
    for smallest, width, height in [(16, *size) for size in ODD_SIZES] + [(1, 200, 1), (1, 3, 7)]:
        processor = Gemma3ImageProcessorPil(
            size={"height": 16, "width": 16}, do_pan_and_scan=True, pan_and_scan_min_crop_size=smallest,
            pan_and_scan_max_num_crops=4, pan_and_scan_min_ratio_to_activate=1.2,
        )  # fmt: skip
        made = processor([Image.fromarray(waves(width, height))], return_tensors="np")
        values = made["pixel_values"].transpose(0, 2, 3, 1)
        pixels = np.rint((values + 1) * 127.5).astype(np.uint8)
        assert np.abs(pixels / 127.5 - 1 - values).max() < 1e-6
        entries.append(
            {
                "size": [width, height],
                "min_crop_size": smallest,
                "num_crops": int(made["num_crops"][0]),
                "pixels": base64.b64encode(zlib.compress(pixels.tobytes(), 9)).decode(),
            }
        )
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    (HERE / "gemma3_crops.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"gemma3_crops: {[entry['num_crops'] for entry in entries]}")


def make_gemma4_sizes() -> None:
    """Makes the file of Gemma 4's image processor: pictures of odd sizes."""
    processor = Gemma4ImageProcessorPil(patch_size=2, max_soft_tokens=70)
    entries = []
    for width, height in ODD_SIZES:
        made = processor([Image.fromarray(waves(width, height))], return_tensors="np")
        places = made["image_position_ids"][0]
        columns, rows = (places.max(axis=0) + 1).tolist()
        values = made["pixel_values"][0][: rows * columns].reshape(rows, columns, 2, 2, 3)
        pixels = np.rint(values * 255).astype(np.uint8).transpose(0, 2, 1, 3, 4)
        entries.append(
            {
                "size": [width, height],
                "grid": [rows // 3, columns // 3],
                "pixels": base64.b64encode(zlib.compress(pixels.tobytes(), 9)).decode(),
            }
        )
        assert rows // 3 * (columns // 3) == int(made["num_soft_tokens_per_image"][0])
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    (HERE / "gemma4_sizes.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"gemma4_sizes: {[entry['grid'] for entry in entries]}")


def make_sizes() -> None:
    """Makes the file of Qwen's image processor: pictures of odd sizes."""
    size = {"shortest_edge": 4 * 64, "longest_edge": 40 * 64}
    processor = Qwen2VLImageProcessorPil(size=size, patch_size=4, merge_size=2)
    entries = []
    for width, height in ODD_SIZES:
        made = processor([Image.fromarray(waves(width, height))], return_tensors="np")
        _, rows, columns = made["image_grid_thw"][0].tolist()
        values = made["pixel_values"].reshape(-1, 3, 2, 4, 4)[:, :, 0].transpose(0, 2, 3, 1)
        pixels = np.rint((values * CLIP_STD + CLIP_MEAN) * 255).astype(np.uint8)
        entries.append(
            {
                "size": [width, height],
                "grid": [rows // 2, columns // 2],
                "patches": base64.b64encode(zlib.compress(pixels.tobytes(), 9)).decode(),
            }
        )
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    (HERE / "qwen_sizes.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"qwen_sizes: {[entry['grid'] for entry in entries]}")


def make_pixtral_sizes() -> None:
    """Makes the file of Mistral 3's image processor: pictures of odd sizes."""
    processor = PixtralImageProcessorPil(size={"longest_edge": 100}, patch_size=8)
    entries = []
    for width, height in ODD_SIZES:
        if width * 100 // max(width, height, 100) < 1 or height * 100 // max(width, height, 100) < 1:
            continue  # transformers would make a picture without rows
        made = processor([Image.fromarray(waves(width, height))], return_tensors="np")
        rows, columns = (each // 8 for each in made["image_sizes"][0].tolist())
        values = made["pixel_values"][0].transpose(1, 2, 0)
        pixels = np.rint((values * CLIP_STD + CLIP_MEAN) * 255).astype(np.uint8)
        entries.append(
            {
                "size": [width, height],
                "grid": [rows, columns],
                "pixels": base64.b64encode(zlib.compress(pixels.tobytes(), 9)).decode(),
            }
        )
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    (HERE / "pixtral_sizes.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"pixtral_sizes: {[entry['grid'] for entry in entries]}")


def make_internvl_tiles() -> None:
    """Makes the file of InternVL's image processor: the tiles of pictures of odd sizes."""
    entries = []
    for least, most in ((1, 6), (3, 12), (1, 1)):
        processor = GotOcr2ImageProcessorPil(
            size={"height": 16, "width": 16}, crop_to_patches=True, min_patches=least, max_patches=most,
            image_mean=IMAGENET_MEAN, image_std=IMAGENET_STD,
        )  # fmt: skip
        for width, height in ODD_SIZES if least == 1 < most else ODD_SIZES[3:6]:
            made = processor([Image.fromarray(waves(width, height))], return_tensors="np")
            values = made["pixel_values"].transpose(0, 2, 3, 1)
            pixels = np.rint((values * IMAGENET_STD + IMAGENET_MEAN) * 255).astype(np.uint8)
            entries.append(
                {
                    "size": [width, height],
                    "tiles": [least, most],
                    "num_tiles": int(made["num_patches"][0]),
                    "pixels": base64.b64encode(zlib.compress(pixels.tobytes(), 9)).decode(),
                }
            )
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    (HERE / "internvl_tiles.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"internvl_tiles: {[entry['num_tiles'] for entry in entries]}")


def make_llama4_tiles() -> None:
    """Makes the file of Llama 4's image processor, which resizes by torchvision: the tiles of pictures, and texts."""
    texts = object.__new__(Llama4Processor)  # only its methods that need no tokenizer are called
    entries = []
    for changes in ({"max_patches": 6}, {"max_patches": 6, "resize_to_max_canvas": True}, {"max_patches": 1}):
        processor = Llama4ImageProcessor(size={"height": 16, "width": 16}, **changes)
        for width, height in ODD_SIZES if changes == {"max_patches": 6} else ODD_SIZES[3:6]:
            made = processor([Image.fromarray(waves(width, height))], return_tensors="pt")
            values = made["pixel_values"].float().numpy().transpose(0, 2, 3, 1)
            pixels = np.rint((values + 1) * 127.5).astype(np.uint8)  # of bfloat16, so that some are off by one
            grid = made["aspect_ratios"][0].tolist()
            entries.append(
                {
                    "size": [width, height],
                    "changes": changes,
                    "grid": grid,
                    "text": texts._prompt_split_image(grid, 4),
                    "pixels": base64.b64encode(zlib.compress(pixels.tobytes(), 9)).decode(),
                }
            )
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    (HERE / "llama4_tiles.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"llama4_tiles: {[entry['grid'] for entry in entries]}")


def make_llava_next_tiles() -> None:
    """Makes the file of LLaVA-NeXT's image processor: tiles of pictures of odd sizes, and their tokens."""
    pinpoints = [[16, 16], [16, 32], [32, 16], [32, 32], [16, 128], [128, 16], [48, 32]]
    tokens = object.__new__(LlavaNextProcessor)  # only its methods that need no tokenizer are called
    tokens.patch_size, tokens.num_additional_image_tokens = 4, 0
    sizes = {"height": 16, "width": 16}
    processor = tokens.image_processor = LlavaNextImageProcessorPil(
        size=sizes, crop_size=sizes, image_grid_pinpoints=pinpoints, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    entries = []
    for width, height in ODD_SIZES:
        made = processor([Image.fromarray(waves(width, height))], return_tensors="np")
        pixels = np.rint((made["pixel_values"][0].transpose(0, 2, 3, 1) + 1) * 127.5).astype(np.uint8)
        grid = [each // 16 for each in select_best_resolution([height, width], pinpoints)]
        entries.append(
            {
                "size": [width, height],
                "tiles": grid,
                "num_tokens": tokens._get_number_of_features(height, width, 16, 16),
                "pixels": base64.b64encode(zlib.compress(pixels.tobytes(), 9)).decode(),
            }
        )
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    (HERE / "llava_next_tiles.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"llava_next_tiles: {[(entry['tiles'], entry['num_tokens']) for entry in entries]}")


def make_lfm2_sizes() -> None:
    """Makes the file of LFM2-VL's image processor, which resizes by torchvision: pictures and their texts."""
    # Only its methods that need no tokenizer are called.
    processor = object.__new__(Lfm2VlProcessor)
    processor.image_token, processor.image_thumbnail_token = "#", "<|img_thumbnail|>"
    processor.image_start_token, processor.image_end_token = "<|image_start|>", "<|image_end|>"
    sizes = {"encoder_patch_size": 2, "downsample_factor": 2, "tile_size": 8}
    pictures = processor.image_processor = Lfm2VlImageProcessor(**sizes, min_image_tokens=4, max_image_tokens=20)
    entries = []
    for changes in ({}, {"use_thumbnail": False, "max_tiles": 4}, {"do_image_splitting": False}):
        for width, height in ODD_SIZES if not changes else ODD_SIZES[2:5]:
            picture = Image.fromarray(waves(width, height))
            made = pictures([picture], return_row_col_info=True, return_tensors="pt", **changes)
            rows, columns = int(made["image_rows"][0]), int(made["image_cols"][0])
            tokens = processor._get_image_num_tokens([int(each) for each in made["image_sizes"][0]], **sizes)
            text = processor._build_image_tokens(rows, columns, *tokens, changes.get("use_thumbnail", True), True)
            tiles = []
            for values, (high, wide) in zip(made["pixel_values"].numpy(), made["spatial_shapes"].tolist(), strict=True):
                patches = values[: high * wide].reshape(high, wide, 2, 2, 3).transpose(0, 2, 1, 3, 4)
                pixels = np.rint((patches.reshape(2 * high, 2 * wide, 3) + 1) * 127.5).astype(np.uint8)
                tiles.append([high // 2, wide // 2, base64.b64encode(zlib.compress(pixels.tobytes(), 9)).decode()])
            entries.append({"size": [width, height], "changes": changes, "text": text, "tiles": tiles})
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    (HERE / "lfm2_sizes.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"lfm2_sizes: {[len(entry['tiles']) for entry in entries]}")


def make_video_sizes() -> None:
    """Makes the file of Qwen's processors of videos, which resize by torchvision: sizes, texts, and some pixels."""
    processor = object.__new__(Qwen3VLProcessor)  # only its methods that need no tokenizer are called
    processor.video_token, processor.vision_start_token, processor.vision_end_token = (
        "#",
        "<|vision_start|>",
        "<|vision_end|>",
    )
    entries = []
    for kind, made_by in (("qwen3_vl", Qwen3VLVideoProcessor), ("qwen2_5_vl", Qwen2VLVideoProcessor)):
        least, most = (4 * 64, 60 * 64) if kind == "qwen3_vl" else (4 * 64, 12 * 64)
        videos = made_by(
            size={"shortest_edge": least, "longest_edge": most}, patch_size=4, merge_size=2, temporal_patch_size=2,
            do_sample_frames=False,
        )  # fmt: skip
        processor.video_processor = videos
        for number, (width, height) in [
            (number, size) for number in (2, 3, 5) for size in ((30, 20), (97, 33), (5, 40))
        ]:
            frames = np.stack([waves(width, height) + 9 * at for at in range(number)]).transpose(0, 3, 1, 2)
            made = videos(videos=[torch.from_numpy(frames)], return_tensors="pt", return_metadata=True)
            moments, rows, columns = made["video_grid_thw"][0].tolist()
            entry = {
                "kind": kind,
                "size": [width, height],
                "frames": number,
                "grid": [moments, rows // 2, columns // 2],
            }
            if kind == "qwen3_vl":
                metadata = SimpleNamespace(fps=3.0, frames_indices=list(range(number)))
                inputs = {"video_grid_thw": made["video_grid_thw"], "video_metadata": [metadata]}
                entry["text"] = processor.replace_video_token(inputs, 0)
            if number == 3:
                mean, deviation = (CLIP_MEAN, CLIP_STD) if kind == "qwen2_5_vl" else ([0.5] * 3, [0.5] * 3)
                values = made["pixel_values_videos"].numpy().reshape(-1, 3, 2, 4, 4).transpose(0, 2, 3, 4, 1)
                pixels = np.rint((values * deviation + mean) * 255).astype(np.uint8)
                entry["patches"] = base64.b64encode(zlib.compress(pixels.tobytes(), 9)).decode()
            entries.append(entry)
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    (HERE / "qwen_videos.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"qwen_videos: {[entry['grid'] for entry in entries]}")


OTHERS = {
    "qwen_videos": make_video_sizes,
    "smolvlm_tiles": make_tiles, "qwen_sizes": make_sizes, "gemma3_crops": make_crops,
    "gemma4_sizes": make_gemma4_sizes, "pixtral_sizes": make_pixtral_sizes, "internvl_tiles": make_internvl_tiles,
    "lfm2_sizes": make_lfm2_sizes, "llama4_tiles": make_llama4_tiles, "llava_next_tiles": make_llava_next_tiles,
    **{f"{name}_videos": partial(make_videos, name) for name in ("qwen2_5_vl", "qwen3_vl", "qwen3_5")},
}  # fmt: skip

if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    for chosen in sys.argv[1:] or [*FAMILIES, *OTHERS]:
        if chosen in FAMILIES:
            make(chosen, FAMILIES[chosen])
        else:
            OTHERS[chosen]()
