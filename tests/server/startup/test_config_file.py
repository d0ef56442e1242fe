"""A file of settings: what it gives, what comes before it, and the errors that name file, table and key."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from server.startup.model_settings import settings_of_each
from server.startup.settings import ServerSettings, SettingsError

EXAMPLE = """
port = 9000
models-max = 2
memory-utilization = 0.2
allowed-hosts = ["a.example", "b.example"]
no-prefix-caching = true
default-chat-template-kwargs = { enable_thinking = false }

[models.coder]
model = "qwen2.5-coder-1.5b"
aliases = ["gpt-4o-mini"]
max-model-len = 16384
sampling = { temperature = 0.2, top_p = 1 }
chat-template-kwargs = { tools_in_user_message = true }
pinned = true
sleep-idle-seconds = 600

[models.poet]
model = "coder"
aliases = ["gpt-4o"]
[models.poet.sampling]
temperature = 1.2

[models."org/small"]
model = "smollm2-135m-instruct"
dtype = "float32"
kv-cache-bytes = 1000000
"""

Load = Callable[..., ServerSettings]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "eagre.toml"


@pytest.fixture
def load(path: Path) -> Load:
    def load(content: str, flags: dict[str, object] | None = None, **environment: str) -> ServerSettings:
        path.write_text(content)
        return ServerSettings.from_sources({"config": str(path), **(flags or {})}, environment)

    return load


def test_each_table_has_adapters_of_its_own(load: Load, tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text("{}")
    settings = load(
        f"""
        [models.coder]
        model = "qwen2.5-coder-1.5b"
        lora = {{ review = "{tmp_path}/one" }}
        max-loras = 1
        [models.small]
        model = "smollm2-135m-instruct"
        lora = ["{tmp_path}/two", "poet={tmp_path}/three"]
        [models.plain]
        model = "gemma-3-270m-it"
        """
    )
    coder, small, plain = settings_of_each(settings)
    assert (coder.lora, coder.max_loras) == ((f"review={tmp_path}/one",), 1)
    assert small.lora == (f"two={tmp_path}/two", f"poet={tmp_path}/three")
    assert (plain.lora, plain.max_loras) == ((), None)


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        ("lora = { a = '/nowhere' }", "[models.coder]: lora is 'a=/nowhere', and there is no such folder or file"),
        ("lora = { coder = '/' }", "[models.coder]: lora is 'coder=/', and the name coder is taken"),
        ("lora = { b = '/' }\n[models.b]\nmodel = 'b'", "[models.coder]: lora is 'b=/', and the name b is taken"),
        (
            "lora = { a = '/' }\n[models.b]\nmodel = 'b'\nlora = { a = '/' }",
            "[models.b]: lora is 'a=/', and the name a is taken",
        ),
        ("lora = { a = '/' }\ntensor-parallel = 2", "there is no key 'tensor-parallel'"),
    ],
)
def test_adapters_that_cannot_be_are_refused_by_their_table(load: Load, tables: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(problem)):
        settings_of_each(load(CODER + tables))


@pytest.mark.parametrize("key", ["mmproj", "chat-template"])
def test_files_of_a_model_that_are_not_there_are_refused_by_their_table(load: Load, key: str) -> None:
    problem = f"[models.coder]: {key.replace('-', '_')} is '/nowhere', and there is no such file"
    with pytest.raises(SettingsError, match=re.escape(problem)):
        settings_of_each(load(f"{CODER}{key} = '/nowhere'"))
    with pytest.raises(SettingsError, match=re.escape(problem.partition(": ")[2])):
        settings_of_each(load(f"{key} = '/nowhere'\n{CODER}"))


def test_keys_are_flags_and_tables_are_models(load: Load) -> None:
    settings = load(EXAMPLE)
    assert (settings.port, settings.models_max, settings.engine.memory_utilization) == (9000, 2, 0.2)
    assert settings.allowed_hosts == ("a.example", "b.example")
    assert not settings.engine.enable_prefix_caching
    assert settings.default_chat_template_kwargs == '{"enable_thinking":false}'
    coder, small = settings_of_each(settings)
    assert (coder.served_model_name, coder.model) == ("coder", "qwen2.5-coder-1.5b")
    assert (coder.engine.max_model_len, coder.sleep_idle_seconds) == (16384, 600.0)
    (table,) = coder.tables
    assert (table.is_pinned, list(table.further_names)) == (True, ["gpt-4o-mini", "poet", "gpt-4o"])
    assert dict(table.defaults.sampling) == {"temperature": 0.2, "top_p": 1}
    assert dict(table.defaults.template_variables) == {"tools_in_user_message": True}
    (poet,) = table.presets
    assert dict(poet.defaults.over(table.defaults).sampling) == {"temperature": 1.2, "top_p": 1}
    assert (small.served_model_name, small.engine.dtype, small.engine.kv_cache_bytes) == (
        "org/small", "float32", 1000000,
    )  # fmt: skip
    assert (small.engine.max_model_len, small.sleep_idle_seconds) == (None, None)
    assert coder.engine.memory_utilization == small.engine.memory_utilization == 0.1  # two share it


def test_a_flag_comes_before_a_variable_and_that_before_the_file(load: Load) -> None:
    assert load(EXAMPLE, {"port": "1"}, EAGRE_PORT="2").port == 1
    assert load(EXAMPLE, EAGRE_PORT="2").port == 2
    assert load(EXAMPLE).port == 9000
    by_flag, by_variable = load(EXAMPLE, {"max_model_len": "64"}), load(EXAMPLE, EAGRE_MAX_MODEL_LEN="64")
    assert [own.engine.max_model_len for own in settings_of_each(by_flag)] == [64, 64]
    assert [own.engine.max_model_len for own in settings_of_each(by_variable)] == [64, 64]
    assert load('coordinator = "a:1"', JAX_COORDINATOR_ADDRESS="b:1").engine.coordinator == "a:1"
    only = load(EXAMPLE, {"model": ["mine=x.gguf"]})
    assert [(own.served_model_name, own.model) for own in settings_of_each(only)] == [("mine", "x.gguf")]


def test_the_example_of_the_documentation_can_be_used(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = tmp_path / "adapters" / "review"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    documentation = Path(__file__).parents[3] / "docs" / "operations.md"
    (example,) = re.findall(r"```toml\n(.*?)```", documentation.read_text(encoding="utf-8"), re.DOTALL)
    coder, small = settings_of_each(load(example))
    assert (list(coder.tables[0].further_names), small.engine.dtype) == (["gpt-4o-mini", "brainstorm"], "bfloat16")
    assert coder.lora == (f"review={adapter}",)


def test_the_variable_names_the_file_too(path: Path) -> None:
    path.write_text('model = ["a=x.gguf", "b=y.gguf"]')
    settings = ServerSettings.from_sources({}, {"EAGRE_CONFIG": str(path)})
    assert settings.models == ("a=x.gguf", "b=y.gguf")


CODER = '[models.coder]\nmodel = "x"\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("prot = 1", "FILE: there is no key 'prot'; did you mean port?"),
        ("port = 70000", "FILE: port is 70000; it must be from 0 to 65535"),
        ('port = "80"', "FILE: port is '80'; it must be an integer"),
        ("port = true", "FILE: port is True; it must be an integer"),
        ("ping-interval = 1" + "0" * 400, "it must be above 0, at most 86400"),
        ("no-prefix-caching = 1", "FILE: no-prefix-caching is 1; it must be true or false"),
        ("allowed-hosts = [1]", "FILE: allowed-hosts is [1]; it must be a list of strings"),
        ("api-key = 12345678", "FILE: api-key is not what it should be; it must be a list of strings"),
        ("max-num-seqs = 1\nmax_num_seqs = 2", "FILE: max-num-seqs is given twice, with - and with _"),
        ('config = "x"', "FILE: there is the key config, and a file names no further one"),
        ('ssl-certfile = "x"', "ssl-certfile in FILE and --ssl-keyfile go together; one of them is missing"),
        ("port = ", "FILE: it is not TOML: Invalid value (at end of document)"),
        ("default-chat-template-kwargs = { a = 1979-05-27 }", "it must have values that JSON has"),
        ("x = " + "[" * 9000, "FILE: it cannot be read: it is nested too deeply, or has a number of too many digits"),
        (".".join(["a"] * 2000) + " = 1", "FILE: it has a key of more than 32 parts"),
        ("a" * 90_000 + " = 1", "FILE: there is no key '" + "a" * 98 + "…"),
        ('x = { "\\"" ' + ". 'b'" * 40 + " = 1 }", "FILE: it has a key of more than 32 parts"),
        ("[models." + ".".join(["a"] * 40) + "]", "FILE: it has a key of more than 32 parts"),
        ('x = "' + '\\"' * 100_000 + '"', "FILE: there is no key 'x'"),  # at once, and not by the square of its quotes
        ('model = "x"\n' + CODER, "FILE: it has the key model and tables of models; give each model its table"),
        ("models = 3", 'FILE: models is no table of tables; a model is written [models.NAME], with a key model = "…"'),
        ("[models]", "FILE: the table models is empty"),
        (CODER + "max-model-lem = 1", "FILE, [models.coder]: there is no key 'max-model-lem'; did you mean "
         "max-model-len?"),
        (CODER + "port = 1", "FILE, [models.coder]: there is no key 'port'"),
        (CODER + "max-model-len = 0", "FILE, [models.coder]: max-model-len is 0; it must be at least 2"),
        (CODER + "pinned = 1", "FILE, [models.coder]: pinned is 1; it must be true or false"),
        (CODER + 'aliases = "a"', "FILE, [models.coder]: aliases is 'a'; it must be a list of strings"),
        (CODER + 'aliases = [""]', "FILE, [models.coder]: an alias is ''; it must have 1 to 256 visible characters"),
        (CODER + 'aliases = ["coder"]', "FILE, [models.coder]: the name 'coder' is given twice, here and in "
         "[models.coder]"),
        (CODER + '[models."a b"]\nmodel = "y"\naliases = ["coder"]', "FILE, [models.'a b']: the name 'coder' is given "
         "twice, here and in [models.coder]"),
        (CODER + "sampling = { temprature = 1 }", "FILE, [models.coder.sampling]: there is no key 'temprature'; did "
         "you mean temperature?"),
        (CODER + "sampling = { temperature = 3 }", "FILE, [models.coder.sampling]: temperature is 3; it must be from 0 "
         "to 2"),
        (CODER + "sampling = 3", "FILE, [models.coder]: sampling is 3; it must be a table"),
        (CODER + "chat-template-kwargs = { messages = 1 }", "without reserved names"),
        (CODER + "lora = { a = 3 }", "FILE, [models.coder]: lora is {'a': 3}; it must be a list of strings"),
        (CODER + "lora = { 'a=b' = '/' }", "FILE, [models.coder]: the name of an adapter is 'a=b'; it must have no ="),
        ("[models.coder]", "FILE, [models.coder]: the key model is missing: a built-in name, a path, or owner/name of "
         "the Hub"),
        ("[models.coder]\nmodel = 1", "FILE, [models.coder]: model is 1; it must be a string with a name or a path"),
        (CODER + '[models.a]\nmodel = "coder"\npinned = true', "FILE, [models.a]: there is the key pinned, which "
         "belongs to the table of the model 'coder'; a preset of it has aliases, sampling and chat-template-kwargs of "
         "its own"),
        (CODER + '[models.a]\nmodel = "coder"\n[models.b]\nmodel = "a"', "FILE, [models.b]: model is 'a', which is "
         "another preset; name its model"),
    ],
)  # fmt: skip
def test_errors_name_the_file_the_table_and_the_key(load: Load, path: Path, content: str, message: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        load(content)
    said, expected = str(refusal.value), message.replace("FILE", str(path))
    assert said.startswith(str(path)) or message.startswith("ssl-certfile in FILE")
    assert said.endswith(expected)


def test_a_file_that_is_not_there_or_no_file_is_named(tmp_path: Path) -> None:
    for name, reason in (("none.toml", "No such file"), (".", "folder"), ("odd.toml", "it is not UTF-8")):
        path = tmp_path / name
        if name == "odd.toml":
            path.write_bytes(b"\xff")
        with pytest.raises(SettingsError, match=reason) as refusal:
            ServerSettings.from_sources({"config": str(path)}, {})
        assert str(path) in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("models-max = 1\n" + CODER + 'pinned = true\n[models.a]\nmodel = "y"', "pins coder; the other models would"),
        ("data-parallel = 2\n" + CODER, "has tables of models, which one process serves"),
        ('served-model-name = "a"\n' + CODER, "the tables of"),
    ],
)
def test_tables_that_do_not_go_with_other_settings_are_refused(load: Load, content: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        settings_of_each(load(content))
