"""The registry of architectures, a row for each name in files."""

from typing import NamedTuple

from engine.interface.errors import ModelError
from engine.models.architectures.dense.apertus import Apertus
from engine.models.architectures.dense.arcee import Arcee
from engine.models.architectures.dense.cohere import Cohere, Cohere2
from engine.models.architectures.dense.ernie4_5 import Ernie45
from engine.models.architectures.dense.exaone4 import Exaone4
from engine.models.architectures.dense.gemma import Gemma
from engine.models.architectures.dense.glm4 import Glm4
from engine.models.architectures.dense.hunyuan import Hunyuan
from engine.models.architectures.dense.nemotron import Nemotron
from engine.models.architectures.dense.olmo3 import Olmo3
from engine.models.architectures.dense.phi2 import Phi2
from engine.models.architectures.dense.seed_oss import SeedOss
from engine.models.architectures.dense.stablelm import StableLm
from engine.models.architectures.dense.starcoder2 import Starcoder2
from engine.models.architectures.encoders.bert import Bert
from engine.models.architectures.encoders.bert_classifier import BertClassifier
from engine.models.architectures.encoders.gemma_embedding import GemmaEmbedding
from engine.models.architectures.encoders.jina_bert_v2 import JinaBertV2
from engine.models.architectures.encoders.jina_v3 import JinaV3
from engine.models.architectures.encoders.modern_bert import ModernBert, ModernBertClassifier
from engine.models.architectures.encoders.nomic_bert import NomicBert
from engine.models.architectures.encoders.xlm_roberta import XlmRoberta, XlmRobertaClassifier
from engine.models.architectures.gemma2 import Gemma2
from engine.models.architectures.gemma3 import Gemma3
from engine.models.architectures.gemma4.decoder import Gemma4
from engine.models.architectures.gpt.falcon import Falcon
from engine.models.architectures.gpt.gpt2 import Gpt2
from engine.models.architectures.gpt.gpt_neox import GptNeoX
from engine.models.architectures.granite import Granite
from engine.models.architectures.hybrids.falcon_h1 import FalconH1
from engine.models.architectures.hybrids.granite_hybrid import GraniteHybrid
from engine.models.architectures.hybrids.jamba import Jamba
from engine.models.architectures.hybrids.lfm2 import Lfm2, Lfm2Moe
from engine.models.architectures.hybrids.mamba2 import Mamba2
from engine.models.architectures.hybrids.nemotron_h import NemotronH
from engine.models.architectures.hybrids.olmo_hybrid import OlmoHybrid
from engine.models.architectures.internlm2 import InternLM2
from engine.models.architectures.latent.deepseek2 import Deepseek2, DeepseekV3, Glm4MoeLite
from engine.models.architectures.latent.mistral4 import Mistral4
from engine.models.architectures.llama import Llama
from engine.models.architectures.mistral import Ministral, Ministral3, Mistral
from engine.models.architectures.mixtures.bailing_moe2 import BailingMoe2
from engine.models.architectures.mixtures.dots1 import Dots1
from engine.models.architectures.mixtures.ernie4_5_moe import Ernie45Moe
from engine.models.architectures.mixtures.exaone_moe import ExaoneMoe
from engine.models.architectures.mixtures.glm4_moe import Glm4Moe
from engine.models.architectures.mixtures.gpt_oss import GptOss
from engine.models.architectures.mixtures.granite_moe import GraniteMoe
from engine.models.architectures.mixtures.hunyuan_moe import HunyuanMoe
from engine.models.architectures.mixtures.minimax_m2 import MiniMaxM2
from engine.models.architectures.mixtures.mixtral import Mixtral
from engine.models.architectures.mixtures.olmoe import Olmoe
from engine.models.architectures.mixtures.qwen2_moe import Qwen2Moe
from engine.models.architectures.mixtures.qwen3_moe import Qwen3Moe
from engine.models.architectures.mixtures.smallthinker import SmallThinker
from engine.models.architectures.olmo2 import Olmo2
from engine.models.architectures.phi3 import Phi3
from engine.models.architectures.qwen2 import Qwen2
from engine.models.architectures.qwen3 import Qwen3
from engine.models.architectures.qwen3_5 import Qwen35, Qwen35Moe
from engine.models.architectures.qwen3_next import Qwen3Next
from engine.models.architectures.seeing.idefics3 import Idefics3
from engine.models.architectures.seeing.qwen2_5_vl import Qwen25VL
from engine.models.architectures.seeing.qwen3_vl import Qwen3VL
from engine.models.architectures.smollm3 import SmolLM3
from engine.models.parts.model import Model
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.mmproj_file import ARCHITECTURE as MMPROJ
from engine.weights.formats.model_folder import ModelFolder


class Architecture(NamedTuple):
    name: str  # in GGUF files, and in the server's description of a model
    transformers_name: str  # the class in Hugging Face transformers
    model: type[Model]


ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture("llama", "LlamaForCausalLM", Llama),
    Architecture("llama", "Idefics3ForConditionalGeneration", Idefics3),
    Architecture("llama", "SmolVLMForConditionalGeneration", Idefics3),
    Architecture("mistral", "MistralForCausalLM", Mistral),
    Architecture("ministral", "MinistralForCausalLM", Ministral),
    Architecture("mistral3", "Ministral3ForCausalLM", Ministral3),
    Architecture("qwen2", "Qwen2ForCausalLM", Qwen2),
    Architecture("qwen2vl", "Qwen2_5_VLForConditionalGeneration", Qwen25VL),
    Architecture("qwen3", "Qwen3ForCausalLM", Qwen3),
    Architecture("qwen3vl", "Qwen3VLForConditionalGeneration", Qwen3VL),
    Architecture("smollm3", "SmolLM3ForCausalLM", SmolLM3),
    Architecture("granite", "GraniteForCausalLM", Granite),
    Architecture("olmo2", "Olmo2ForCausalLM", Olmo2),
    Architecture("olmo3", "Olmo3ForCausalLM", Olmo3),
    Architecture("exaone4", "Exaone4ForCausalLM", Exaone4),
    Architecture("seed_oss", "SeedOssForCausalLM", SeedOss),
    Architecture("ernie4_5", "Ernie4_5ForCausalLM", Ernie45),
    Architecture("glm4", "Glm4ForCausalLM", Glm4),
    Architecture("arcee", "ArceeForCausalLM", Arcee),
    Architecture("internlm2", "InternLM2ForCausalLM", InternLM2),
    Architecture("apertus", "ApertusForCausalLM", Apertus),
    Architecture("hunyuan-dense", "HunYuanDenseV1ForCausalLM", Hunyuan),
    Architecture("gpt2", "GPT2LMHeadModel", Gpt2),
    Architecture("gptneox", "GPTNeoXForCausalLM", GptNeoX),
    Architecture("falcon", "FalconForCausalLM", Falcon),
    Architecture("command-r", "CohereForCausalLM", Cohere),
    Architecture("cohere2", "Cohere2ForCausalLM", Cohere2),
    Architecture("starcoder2", "Starcoder2ForCausalLM", Starcoder2),
    Architecture("nemotron", "NemotronForCausalLM", Nemotron),
    Architecture("stablelm", "StableLmForCausalLM", StableLm),
    Architecture("phi2", "PhiForCausalLM", Phi2),
    Architecture("phi3", "Phi3ForCausalLM", Phi3),
    Architecture("gemma", "GemmaForCausalLM", Gemma),
    Architecture("gemma2", "Gemma2ForCausalLM", Gemma2),
    Architecture("gemma3", "Gemma3ForCausalLM", Gemma3),
    Architecture("gemma3", "Gemma3ForConditionalGeneration", Gemma3),
    Architecture("gemma4", "Gemma4ForCausalLM", Gemma4),
    Architecture("gemma4", "Gemma4ForConditionalGeneration", Gemma4),
    Architecture("mixtral", "MixtralForCausalLM", Mixtral),
    Architecture("granitemoe", "GraniteMoeForCausalLM", GraniteMoe),
    Architecture("gpt-oss", "GptOssForCausalLM", GptOss),
    Architecture("qwen2moe", "Qwen2MoeForCausalLM", Qwen2Moe),
    Architecture("qwen3moe", "Qwen3MoeForCausalLM", Qwen3Moe),
    Architecture("olmoe", "OlmoeForCausalLM", Olmoe),
    Architecture("glm4moe", "Glm4MoeForCausalLM", Glm4Moe),
    Architecture("dots1", "Dots1ForCausalLM", Dots1),
    Architecture("ernie4_5-moe", "Ernie4_5_MoeForCausalLM", Ernie45Moe),
    Architecture("hunyuan-moe", "HunYuanMoEV1ForCausalLM", HunyuanMoe),
    Architecture("minimax-m2", "MiniMaxM2ForCausalLM", MiniMaxM2),
    Architecture("exaone-moe", "ExaoneMoeForCausalLM", ExaoneMoe),
    Architecture("bailingmoe2", "BailingMoeV2ForCausalLM", BailingMoe2),
    Architecture("smallthinker", "SmallThinkerForCausalLM", SmallThinker),
    Architecture("deepseek2", "DeepseekV2ForCausalLM", Deepseek2),
    Architecture("deepseek2", "DeepseekV3ForCausalLM", DeepseekV3),
    Architecture("deepseek2", "Glm4MoeLiteForCausalLM", Glm4MoeLite),
    Architecture("mistral4", "Mistral4ForCausalLM", Mistral4),
    Architecture("lfm2", "Lfm2ForCausalLM", Lfm2),
    Architecture("lfm2moe", "Lfm2MoeForCausalLM", Lfm2Moe),
    Architecture("qwen3next", "Qwen3NextForCausalLM", Qwen3Next),
    Architecture("qwen35", "Qwen3_5ForCausalLM", Qwen35),
    Architecture("qwen35", "Qwen3_5ForConditionalGeneration", Qwen35),
    Architecture("qwen35moe", "Qwen3_5MoeForCausalLM", Qwen35Moe),
    Architecture("qwen35moe", "Qwen3_5MoeForConditionalGeneration", Qwen35Moe),
    Architecture("olmo-hybrid", "OlmoHybridForCausalLM", OlmoHybrid),
    Architecture("bert", "BertModel", Bert),
    Architecture("bert-rerank", "BertForSequenceClassification", BertClassifier),
    Architecture("xlm-roberta", "XLMRobertaModel", XlmRoberta),
    Architecture("xlm-roberta", "RobertaModel", XlmRoberta),
    Architecture("xlm-roberta-rerank", "XLMRobertaForSequenceClassification", XlmRobertaClassifier),
    Architecture("xlm-roberta-rerank", "RobertaForSequenceClassification", XlmRobertaClassifier),
    Architecture("nomic-bert", "NomicBertModel", NomicBert),
    Architecture("jina-bert-v2", "JinaBertModel", JinaBertV2),
    Architecture("jina-bert-v2", "JinaBertForMaskedLM", JinaBertV2),
    Architecture("jina-bert-v3", "JinaEmbeddingsV3Model", JinaV3),
    Architecture("modern-bert", "ModernBertModel", ModernBert),
    Architecture("modern-bert-rerank", "ModernBertForSequenceClassification", ModernBertClassifier),
    Architecture("gemma-embedding", "Gemma3TextModel", GemmaEmbedding),
    Architecture("granitehybrid", "GraniteMoeHybridForCausalLM", GraniteHybrid),
    Architecture("falcon-h1", "FalconH1ForCausalLM", FalconH1),
    Architecture("nemotron_h", "NemotronHForCausalLM", NemotronH),
    Architecture("nemotron_h_moe", "NemotronHForCausalLM", NemotronH),
    Architecture("mamba2", "Mamba2ForCausalLM", Mamba2),
    Architecture("jamba", "JambaForCausalLM", Jamba),
)


# Those that GGUF files know as others.
_IN_GGUF = {"mistral": "llama", "ministral": "llama", "mixtral": "llama"}


def names_in_gguf(architecture: Architecture) -> tuple[str, ...]:
    """The names that an architecture may have in GGUF files, its own first."""
    return tuple(dict.fromkeys((architecture.name, _IN_GGUF.get(architecture.name, architecture.name))))


# The names of architectures in GGUF files, and those that they have here where the file has a head.
_WITH_HEAD = {"bert": "xlm-roberta-rerank", "modern-bert": "modern-bert-rerank"}


_CAUSAL, _LABELS = "ForCausalLM", "ForSequenceClassification"  # how names end in transformers


def has_head_of_labels(architecture: Architecture) -> bool:
    """Whether a decoder has a head for labels in the place of the matrix that makes logits."""
    return architecture.transformers_name.endswith(_LABELS) and not architecture.model.is_encoder


def architecture_of_folder(folder: ModelFolder) -> Architecture:
    """Raises ModelError if the architecture is not supported."""
    names = folder.config.value("architectures")
    for architecture in ARCHITECTURES:
        if names == [architecture.transformers_name]:
            return architecture
    for architecture in ARCHITECTURES:
        # A decoder with a head for labels has the class of its name.
        name = architecture.transformers_name.replace(_CAUSAL, _LABELS)
        if names == [name] and not architecture.model.is_encoder and name.endswith(_LABELS):
            return architecture._replace(transformers_name=name)
    served = ", ".join(f'["{architecture.transformers_name}"]' for architecture in ARCHITECTURES)
    raise folder.config.error("architectures", f"this version serves {served}")


def architecture_of_gguf(file: GGUFTensors) -> Architecture:
    """Raises ModelError if the architecture is not supported."""
    if file.architecture == MMPROJ:
        raise ModelError(
            "the file is an encoder of pictures (mmproj) and no model; give the file of its text model, and this one "
            "by mmproj or beside it"
        )
    # The ggml project knows Mixtral as Llama with experts.
    is_mixtral = file.architecture == "llama" and file.fields.value("expert_count")
    name = "mixtral" if is_mixtral else file.architecture
    if "cls.output.weight" in file.names:
        name = _WITH_HEAD.get(name, name)
    for architecture in ARCHITECTURES:
        if name == architecture.name:
            return architecture
    served = ", ".join(repr(architecture.name) for architecture in ARCHITECTURES)
    raise ModelError(f"the architecture {file.architecture!r} is not served; this version serves {served}")
