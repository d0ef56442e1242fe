"""The registry of architectures, a row for each name in files."""

from importlib import import_module
from typing import NamedTuple

from engine.interface.errors import ModelError
from engine.models.parts.model import Model
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.mmproj_file import ARCHITECTURE as MMPROJ
from engine.weights.formats.model_folder import ModelFolder


class Architecture(NamedTuple):
    name: str  # in GGUF files, and in the server's description of a model
    transformers_name: str  # the class in Hugging Face transformers
    entry_point: str  # "module:class", the module in engine/models/architectures

    @property
    def model(self) -> type[Model]:
        """The class. Its module is imported here, because those of all architectures take a tenth of a second."""
        module, _, name = self.entry_point.partition(":")
        model: type[Model] = getattr(import_module(f"engine.models.architectures.{module}"), name)
        return model


ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture("llama", "LlamaForCausalLM", "llama:Llama"),
    Architecture("llama", "LLaMAForCausalLM", "llama:Llama"),
    Architecture("llama", "AquilaForCausalLM", "llama:Aquila"),
    Architecture("llama", "IQuestCoderForCausalLM", "llama:IQuestCoder"),
    Architecture("llama", "HeliumForCausalLM", "llama:Helium"),
    Architecture("llama", "InternLMForCausalLM", "llamas.biased:InternLM"),
    Architecture("llama", "InternLM3ForCausalLM", "llamas.biased:InternLM3"),
    Architecture("llama", "CwmForCausalLM", "dense.cwm:Cwm"),
    Architecture("llama", "Idefics3ForConditionalGeneration", "seeing.idefics3:Idefics3"),
    Architecture("llama", "SmolVLMForConditionalGeneration", "seeing.idefics3:Idefics3"),
    Architecture("mistral", "MistralForCausalLM", "mistral:Mistral"),
    Architecture("ministral", "MinistralForCausalLM", "mistral:Ministral"),
    Architecture("mistral3", "Ministral3ForCausalLM", "mistral:Ministral3"),
    Architecture("mistral3", "Mistral3ForConditionalGeneration", "seeing.mistral3:Mistral3"),
    Architecture("qwen", "QWenLMHeadModel", "llamas.qwen:Qwen"),
    Architecture("qwen2", "Qwen2ForCausalLM", "qwen2:Qwen2"),
    Architecture("qwen2", "MiMoForCausalLM", "qwen2:MiMo"),
    Architecture("qwen2", "InternVLForConditionalGeneration", "seeing.internvl:InternVL"),
    Architecture("qwen2vl", "Qwen2_5_VLForConditionalGeneration", "seeing.qwen2_5_vl:Qwen25VL"),
    Architecture("qwen3", "Qwen3ForCausalLM", "qwen3:Qwen3"),
    Architecture("qwen3vl", "Qwen3VLForConditionalGeneration", "seeing.qwen3_vl:Qwen3VL"),
    Architecture("qwen3vlmoe", "Qwen3VLMoeForConditionalGeneration", "seeing.qwen3_vl_moe:Qwen3VLMoe"),
    Architecture("smollm3", "SmolLM3ForCausalLM", "smollm3:SmolLM3"),
    Architecture("minicpm", "MiniCPMForCausalLM", "llamas.minicpm:MiniCpm"),
    Architecture("granite", "GraniteForCausalLM", "granite:Granite"),
    Architecture("granite", "HyperCLOVAXForCausalLM", "granite:HyperClovaX"),
    Architecture("granite", "LlavaNextForConditionalGeneration", "seeing.llava_next:LlavaNext"),
    Architecture("olmo", "OlmoForCausalLM", "llamas.olmo:Olmo"),
    Architecture("olmo2", "Olmo2ForCausalLM", "olmo2:Olmo2"),
    Architecture("olmo3", "Olmo3ForCausalLM", "dense.olmo3:Olmo3"),
    Architecture("orion", "OrionForCausalLM", "llamas.orion:Orion"),
    Architecture("xverse", "XverseForCausalLM", "llamas.xverse:Xverse"),
    Architecture("nanbeige", "NanbeigeForCausalLM", "llamas.nanbeige:Nanbeige"),
    Architecture("exaone", "ExaoneForCausalLM", "llamas.exaone:Exaone"),
    Architecture("exaone4", "Exaone4ForCausalLM", "dense.exaone4:Exaone4"),
    Architecture("seed_oss", "SeedOssForCausalLM", "dense.seed_oss:SeedOss"),
    Architecture("ernie4_5", "Ernie4_5ForCausalLM", "dense.ernie4_5:Ernie45"),
    Architecture("ernie4_5", "Ernie4_5_ForCausalLM", "dense.ernie4_5:Ernie45"),
    Architecture("chatglm", "GlmForCausalLM", "llamas.glm:Glm"),
    Architecture("chatglm", "ChatGLMModel", "llamas.chatglm:ChatGlm"),
    Architecture("chatglm", "ChatGLMForConditionalGeneration", "llamas.chatglm:ChatGlm"),
    Architecture("pangu-embedded", "PanguEmbeddedForCausalLM", "llamas.biased:PanguEmbedded"),
    Architecture("glm4", "Glm4ForCausalLM", "dense.glm4:Glm4"),
    Architecture("arcee", "ArceeForCausalLM", "dense.arcee:Arcee"),
    Architecture("internlm2", "InternLM2ForCausalLM", "internlm2:InternLM2"),
    Architecture("apertus", "ApertusForCausalLM", "dense.apertus:Apertus"),
    Architecture("hunyuan-dense", "HunYuanDenseV1ForCausalLM", "dense.hunyuan:Hunyuan"),
    Architecture("maincoder", "MaincoderForCausalLM", "dense.maincoder:Maincoder"),
    Architecture("gpt2", "GPT2LMHeadModel", "gpt.gpt2:Gpt2"),
    Architecture("starcoder", "GPTBigCodeForCausalLM", "gpt.gpt_bigcode:GptBigCode"),
    Architecture("codeshell", "CodeShellForCausalLM", "gpt.codeshell:CodeShell"),
    Architecture("refact", "GPTRefactForCausalLM", "gpt.refact:Refact"),
    Architecture("opt", "OPTForCausalLM", "gpt.opt:Opt"),
    Architecture("gpt-neo", "GPTNeoForCausalLM", "gpt.gpt_neo:GptNeo"),
    Architecture("gptj", "GPTJForCausalLM", "gpt.gptj:GptJ"),
    Architecture("codegen", "CodeGenForCausalLM", "gpt.gptj:CodeGen"),
    Architecture("gptneox", "GPTNeoXForCausalLM", "gpt.gpt_neox:GptNeoX"),
    Architecture("falcon", "FalconForCausalLM", "gpt.falcon:Falcon"),
    Architecture("falcon", "RWForCausalLM", "gpt.falcon:RefinedWeb"),
    Architecture("bloom", "BloomForCausalLM", "gpt.bloom:Bloom"),
    Architecture("mpt", "MptForCausalLM", "gpt.mpt:Mpt"),
    Architecture("mpt", "MPTForCausalLM", "gpt.mpt:Mpt"),
    Architecture("jais", "JAISLMHeadModel", "gpt.jais:Jais"),
    Architecture("jais2", "Jais2ForCausalLM", "dense.jais2:Jais2"),
    Architecture("baichuan", "BaichuanForCausalLM", "llamas.baichuan:Baichuan"),
    Architecture("baichuan", "BaiChuanForCausalLM", "llamas.baichuan:Baichuan"),
    Architecture("deci", "DeciLMForCausalLM", "llamas.deci:Deci"),
    Architecture("openelm", "OpenELMForCausalLM", "llamas.openelm:OpenElm"),
    Architecture("command-r", "CohereForCausalLM", "head_norms.cohere:Cohere"),
    Architecture("cohere2", "Cohere2ForCausalLM", "head_norms.cohere:Cohere2"),
    Architecture("starcoder2", "Starcoder2ForCausalLM", "dense.starcoder2:Starcoder2"),
    Architecture("nemotron", "NemotronForCausalLM", "dense.nemotron:Nemotron"),
    Architecture("stablelm", "StableLmForCausalLM", "head_norms.stablelm:StableLm"),
    Architecture("stablelm", "StableLMEpochForCausalLM", "head_norms.stablelm:StableLmEpoch"),
    Architecture("phi2", "PhiForCausalLM", "phi.phi2:Phi2"),
    Architecture("phi3", "Phi3ForCausalLM", "phi.phi3:Phi3"),
    Architecture("phimoe", "PhimoeForCausalLM", "phi.phimoe:PhiMoe"),
    Architecture("phimoe", "PhiMoEForCausalLM", "phi.phimoe:PhiMoe"),
    Architecture("gemma", "GemmaForCausalLM", "dense.gemma:Gemma"),
    Architecture("gemma2", "Gemma2ForCausalLM", "gemma2:Gemma2"),
    Architecture("vaultgemma", "VaultGemmaForCausalLM", "gemma2:VaultGemma"),
    Architecture("gemma3", "Gemma3ForCausalLM", "gemma3:Gemma3"),
    Architecture("gemma3", "Gemma3ForConditionalGeneration", "gemma3:Gemma3"),
    Architecture("gemma3n", "Gemma3nForCausalLM", "gemma4.gemma3n:Gemma3n"),
    Architecture("gemma3n", "Gemma3nForConditionalGeneration", "gemma4.gemma3n:Gemma3n"),
    Architecture("gemma4", "Gemma4ForCausalLM", "seeing.gemma4:SeeingGemma4"),
    Architecture("gemma4", "Gemma4ForConditionalGeneration", "seeing.gemma4:SeeingGemma4"),
    Architecture("llama4", "Llama4ForCausalLM", "seeing.llama4:SeeingLlama4"),
    Architecture("llama4", "Llama4ForConditionalGeneration", "seeing.llama4:SeeingLlama4"),
    Architecture("mixtral", "MixtralForCausalLM", "mixtures.mixtral:Mixtral"),
    Architecture("granitemoe", "GraniteMoeForCausalLM", "mixtures.granite_moe:GraniteMoe"),
    Architecture("gpt-oss", "GptOssForCausalLM", "mixtures.gpt_oss:GptOss"),
    Architecture("qwen2moe", "Qwen2MoeForCausalLM", "mixtures.qwen2_moe:Qwen2Moe"),
    Architecture("qwen3moe", "Qwen3MoeForCausalLM", "mixtures.qwen3_moe:Qwen3Moe"),
    Architecture("mellum", "MellumForCausalLM", "mixtures.mellum:Mellum"),
    Architecture("olmoe", "OlmoeForCausalLM", "mixtures.olmoe:Olmoe"),
    Architecture("glm4moe", "Glm4MoeForCausalLM", "mixtures.glm4_moe:Glm4Moe"),
    Architecture("glm4moe", "SolarOpenForCausalLM", "mixtures.glm4_moe:SolarOpen"),
    Architecture("dots1", "Dots1ForCausalLM", "shared_experts.dots1:Dots1"),
    Architecture("ernie4_5-moe", "Ernie4_5_MoeForCausalLM", "mixtures.ernie4_5_moe:Ernie45Moe"),
    Architecture("hunyuan-moe", "HunYuanMoEV1ForCausalLM", "mixtures.hunyuan_moe:HunyuanMoe"),
    Architecture("hy_v3", "HYV3ForCausalLM", "shared_experts.hy_v3:HyV3"),
    Architecture("minimax-m2", "MiniMaxM2ForCausalLM", "mixtures.minimax_m2:MiniMaxM2"),
    Architecture("mimo2", "MiMoV2FlashForCausalLM", "mixtures.mimo2:Mimo2"),
    Architecture("exaone-moe", "ExaoneMoeForCausalLM", "shared_experts.exaone_moe:ExaoneMoe"),
    Architecture("exaone-moe", "ExaoneMoEForCausalLM", "shared_experts.exaone_moe:ExaoneMoe"),
    Architecture("bailingmoe", "BailingMoeForCausalLM", "mixtures.bailing_moe:BailingMoe"),
    Architecture("bailingmoe2", "BailingMoeV2ForCausalLM", "mixtures.bailing_moe:BailingMoe2"),
    Architecture("afmoe", "AfmoeForCausalLM", "afmoe:Afmoe"),
    Architecture("laguna", "LagunaForCausalLM", "shared_experts.laguna:Laguna"),
    Architecture("step35", "Step3p5ForCausalLM", "shared_experts.step35:Step35"),
    Architecture("smallthinker", "SmallThinkerForCausalLM", "mixtures.smallthinker:SmallThinker"),
    Architecture("dbrx", "DbrxForCausalLM", "mixtures.dbrx:Dbrx"),
    Architecture("cohere2moe", "Cohere2MoeForCausalLM", "shared_experts.cohere2_moe:Cohere2Moe"),
    Architecture("deepseek", "DeepseekForCausalLM", "shared_experts.deepseek:Deepseek"),
    Architecture("deepseek2", "DeepseekV2ForCausalLM", "latent.deepseek2:Deepseek2"),
    Architecture("deepseek2", "DeepseekV3ForCausalLM", "latent.deepseek2:DeepseekV3"),
    Architecture("deepseek2", "Glm4MoeLiteForCausalLM", "latent.deepseek2:Glm4MoeLite"),
    Architecture("deepseek32", "DeepseekV32ForCausalLM", "latent.deepseek32:Deepseek32"),
    Architecture("glm-dsa", "GlmMoeDsaForCausalLM", "latent.glm_dsa:GlmDsa"),
    Architecture("kimi-linear", "KimiLinearForCausalLM", "latent.kimi_linear:KimiLinear"),
    Architecture("minicpm3", "MiniCPM3ForCausalLM", "latent.minicpm3:MiniCpm3"),
    Architecture("youtu", "YoutuForCausalLM", "latent.youtu:Youtu"),
    Architecture("plm", "PLMForCausalLM", "latent.plm:Plm"),
    Architecture("mistral4", "Mistral4ForCausalLM", "latent.mistral4:Mistral4"),
    Architecture("lfm2", "Lfm2ForCausalLM", "hybrids.lfm2:Lfm2"),
    Architecture("lfm2", "LFM2ForCausalLM", "hybrids.lfm2:Lfm2"),
    Architecture("lfm2", "Lfm2VlForConditionalGeneration", "seeing.lfm2_vl:Lfm2VL"),
    Architecture("lfm2moe", "Lfm2MoeForCausalLM", "hybrids.lfm2:Lfm2Moe"),
    Architecture("qwen3next", "Qwen3NextForCausalLM", "qwen3_next:Qwen3Next"),
    Architecture("qwen35", "Qwen3_5ForCausalLM", "seeing.qwen3_5:Qwen35"),
    Architecture("qwen35", "Qwen3_5ForConditionalGeneration", "seeing.qwen3_5:Qwen35"),
    Architecture("qwen35moe", "Qwen3_5MoeForCausalLM", "seeing.qwen3_5:Qwen35Moe"),
    Architecture("qwen35moe", "Qwen3_5MoeForConditionalGeneration", "seeing.qwen3_5:Qwen35Moe"),
    Architecture("olmo-hybrid", "OlmoHybridForCausalLM", "hybrids.olmo_hybrid:OlmoHybrid"),
    Architecture("bert", "BertModel", "encoders.bert:Bert"),
    Architecture("bert-rerank", "BertForSequenceClassification", "encoders.bert_classifier:BertClassifier"),
    Architecture("xlm-roberta", "XLMRobertaModel", "encoders.xlm_roberta:XlmRoberta"),
    Architecture("xlm-roberta", "RobertaModel", "encoders.xlm_roberta:XlmRoberta"),
    Architecture(
        "xlm-roberta-rerank", "XLMRobertaForSequenceClassification", "encoders.xlm_roberta:XlmRobertaClassifier"
    ),
    Architecture("xlm-roberta-rerank", "RobertaForSequenceClassification", "encoders.xlm_roberta:XlmRobertaClassifier"),
    Architecture("nomic-bert", "NomicBertModel", "encoders.nomic_bert:NomicBert"),
    Architecture("nomic-bert-moe", "NomicBertModel", "encoders.nomic_bert:NomicBert"),
    Architecture("llama-embed", "LlamaBidirectionalModel", "encoders.llama_embed:LlamaEmbed"),
    Architecture("jina-bert-v2", "JinaBertModel", "encoders.jina_bert_v2:JinaBertV2"),
    Architecture("jina-bert-v2", "JinaBertForMaskedLM", "encoders.jina_bert_v2:JinaBertV2"),
    Architecture("jina-bert-v3", "JinaEmbeddingsV3Model", "encoders.jina_v3:JinaV3"),
    Architecture("modern-bert", "ModernBertModel", "encoders.modern_bert:ModernBert"),
    Architecture(
        "modern-bert-rerank", "ModernBertForSequenceClassification", "encoders.modern_bert:ModernBertClassifier"
    ),
    Architecture("gemma-embedding", "Gemma3TextModel", "encoders.gemma_embedding:GemmaEmbedding"),
    Architecture("granitehybrid", "GraniteMoeHybridForCausalLM", "hybrids.granite_hybrid:GraniteHybrid"),
    Architecture("falcon-h1", "FalconH1ForCausalLM", "hybrids.falcon_h1:FalconH1"),
    Architecture("nemotron_h", "NemotronHForCausalLM", "hybrids.nemotron_h:NemotronH"),
    Architecture("nemotron_h_moe", "NemotronHForCausalLM", "hybrids.nemotron_h:NemotronH"),
    Architecture("plamo2", "Plamo2ForCausalLM", "plamo.plamo2:Plamo2"),
    Architecture("plamo2", "PLaMo2ForCausalLM", "plamo.plamo2:Plamo2"),
    Architecture("plamo3", "Plamo3ForCausalLM", "plamo.plamo3:Plamo3"),
    Architecture("plamo3", "PLaMo3ForCausalLM", "plamo.plamo3:Plamo3"),
    Architecture("mamba", "MambaForCausalLM", "hybrids.mamba:Mamba"),
    Architecture("mamba", "FalconMambaForCausalLM", "hybrids.mamba:FalconMamba"),
    Architecture("mamba2", "Mamba2ForCausalLM", "hybrids.mamba2:Mamba2"),
    Architecture("jamba", "JambaForCausalLM", "hybrids.jamba:Jamba"),
)


# Those that GGUF files know as others.
_IN_GGUF = {"mistral": "llama", "ministral": "llama", "mixtral": "llama", "youtu": "deepseek2"}


def names_in_gguf(architecture: Architecture) -> tuple[str, ...]:
    """The names that an architecture may have in GGUF files, its own first."""
    return tuple(dict.fromkeys((architecture.name, _IN_GGUF.get(architecture.name, architecture.name))))


# The names of architectures in GGUF files, and those that they have here where the file has a head.
_WITH_HEAD = {"bert": "xlm-roberta-rerank", "modern-bert": "modern-bert-rerank"}


# How names end in transformers: with the matrix that makes logits, with a head for labels, and with neither.
_CAUSAL, _LABELS, _BASE = "ForCausalLM", "ForSequenceClassification", "Model"


def has_head_of_labels(architecture: Architecture) -> bool:
    """Whether a decoder has a head for labels in the place of the matrix that makes logits."""
    return architecture.transformers_name.endswith(_LABELS) and not architecture.model.is_encoder


def is_headless(architecture: Architecture) -> bool:
    """Whether a decoder has no matrix that makes logits, so that its texts become embeddings alone."""
    whole = architecture.transformers_name.removesuffix(_BASE) + _CAUSAL
    return any(whole == each.transformers_name for each in ARCHITECTURES)


# Classes whose folders are of another architecture where positions rotate: Jina published its third model so.
_WITH_ROTATION = {"XLMRobertaModel": "JinaEmbeddingsV3Model"}


def architecture_of_folder(folder: ModelFolder) -> Architecture:
    """Raises ModelError if the architecture is not supported."""
    names = folder.config.value("architectures")
    if isinstance(names, list) and folder.config.value("position_embedding_type") == "rotary":
        names = [_WITH_ROTATION.get(name, name) for name in map(str, names)]
    for architecture in ARCHITECTURES:
        if names == [architecture.transformers_name]:
            return architecture
    for architecture in ARCHITECTURES:
        # A decoder with a head for labels, or with none, has the class of its name.
        if not architecture.transformers_name.endswith(_CAUSAL):
            continue
        for ending in (_LABELS, _BASE):
            name = architecture.transformers_name.replace(_CAUSAL, ending)
            if names == [name]:
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
    if file.value("general.type") == "adapter":
        raise ModelError(
            f"the file is an adapter for a model of the architecture {file.architecture[:100]!r} and no model; give "
            "the file of its model, and this one by lora"
        )
    # The ggml project knows Mixtral as Llama with experts.
    is_mixtral = file.architecture == "llama" and file.fields.value("expert_count")
    name = "mixtral" if is_mixtral else file.architecture
    if name == "deepseek2" and not file.fields.value("expert_count"):
        name = "youtu"
    if "cls.output.weight" in file.names:
        name = _WITH_HEAD.get(name, name)
    for architecture in ARCHITECTURES:
        if name == architecture.name:
            return architecture
    served = ", ".join(repr(architecture.name) for architecture in ARCHITECTURES)
    raise ModelError(f"the architecture {file.architecture!r} is not served; this version serves {served}")
