"""What the folders of GPT-2 and of its descendants have in common: names of sizes in config.json, and of tensors."""

from engine.weights.formats.model_folder import JsonFile

LAYER_SIZES = {
    "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}  # fmt: skip
_SIZES = {**LAYER_SIZES, "intermediate_size": "n_inner", "hidden_act": "activation_function"}
# The beginnings of names, by those that most architectures have.
FOLDER_NAMES = {
    "model.embed_tokens.": "transformer.wte.", "model.ln_f.": "transformer.ln_f.", "model.layers.": "transformer.h.",
}  # fmt: skip


def with_usual_sizes(config: JsonFile) -> JsonFile:
    """The configuration with the usual names; raises ModelError where `n_embd` is missing or no size.

    Feed-forward blocks are four times as wide as the hidden states where nothing else is said.
    """
    hidden_size = config.required_integer("n_embd", least=1)
    config = config.with_values({name: config.value(old) for name, old in _SIZES.items()})
    if config.value("intermediate_size") is None:
        config = config.with_values({"intermediate_size": 4 * hidden_size})
    return config
