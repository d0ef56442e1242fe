"""Windows of tokens of a fixed text."""

import gzip
from pathlib import Path

import numpy as np

from server.text.tokenizer import Tokenizer

NOVEL = Path(__file__).parents[1] / "data" / "northanger_abbey.txt.gz"


def read_text(path: Path) -> str:
    """The UTF-8 text of a file, perhaps compressed with gzip; raises ValueError or OSError."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no UTF-8 text: {error}") from error


def text_windows(text: str, tokenizer: Tokenizer, *, num_windows: int, window_size: int) -> np.ndarray:
    """Windows of consecutive tokens, spread evenly over the text without overlap: int32[num_windows, window_size].

    A begin-of-sequence token that the model wants is part of the window. Raises ValueError where the text is too short.
    """
    if num_windows < 1:
        raise ValueError(f"the number of windows is {num_windows}; it must be at least 1")
    if window_size < 2:
        raise ValueError(f"the window size is {window_size}; it must be at least 2 tokens")
    bos_token_id = tokenizer.bos_token_id if tokenizer.add_bos_token else None
    num_text_tokens = window_size if bos_token_id is None else window_size - 1
    token_ids = np.array(tokenizer.encode(text, add_special_tokens=False), np.int32)
    available = len(token_ids) // num_text_tokens
    if num_windows > available:
        raise ValueError(
            f"the number of windows is {num_windows}; the text has {len(token_ids)} tokens, "
            f"which make at most {available} windows of {window_size}"
        )
    pieces = token_ids[: available * num_text_tokens].reshape(available, num_text_tokens)
    chosen = pieces[np.arange(num_windows) * available // num_windows]
    return chosen if bos_token_id is None else np.insert(chosen, 0, bos_token_id, axis=1)
