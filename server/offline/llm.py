"""The class `LLM` of the offline Python API: a model in this process, without a server.

from eagre import LLM

with LLM("smollm2-135m-instruct") as llm:
    print(llm.generate("Once upon a time", max_tokens=64).text)
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias, overload

import numpy as np

from engine.interface.config import EngineConfig
from engine.interface.types import Pooling, Poolings, Progress
from sampling.host.params import InvalidParameter, SamplingParams
from server.api.openai.chat import ChatCall
from server.api.openai.completion_request import Prompt
from server.generation.prompt_sources import TextPrompt
from server.model_sources.cache_folder import cache_folder
from server.offline.batch import BatchProgress, Output
from server.offline.llm_lifecycle import LLMLifecycle
from server.offline.request_builder import (
    CHAT,
    COMPLETE,
    Messages,
    Options,
    Params,
    RequestBuilder,
    as_invalid_parameter,
    check_conversations,
    is_one_conversation,
    is_one_prompt,
)
from server.offline.saved_config import SavedConfig
from server.offline.text_stream import TextStream
from server.startup.model_loader import LoadedModel, plan_with
from server.startup.progress import ProgressReporter, shown
from server.startup.settings import DEFAULT_MODEL
from server.text.sentence_encoder import POOLINGS, usual_pooling

ShowProgress: TypeAlias = bool | Callable[[BatchProgress], None]


class LLM(LLMLifecycle):
    """A loaded model. It may be used from scripts, from notebooks, and from several threads at once.

    Parameters of a request are `SamplingParams`, keywords with the names of the HTTP API (max_tokens, temperature,
    stop, n, …), or both, in which case the keywords win; what neither says is the model's own. Limits, defaults, stop
    strings, finish reasons and counts are those of the HTTP API. Where keywords have text (bad_words), `SamplingParams`
    have token ids. Logprobs come back by token ids too.

    Every method but `close` raises EngineError once the model is closed or the engine has failed. A request whose own
    grammar or parameters leave no token to choose ends with DeadEnd, an EngineError too.

    The constructor pulls the model where it is missing, reads it and compiles every shape.

    Args:
        model: name of a built-in model, or path of a GGUF file or a Hugging Face folder.
        progress: False is silent; a callable receives stages instead of bars being shown.
        engine: fields of EngineConfig. Compiled programs are cached in the user's cache folder by default.

    Raises:
        ModelStoreError, OSError: the model cannot be found or downloaded.
        ModelError: it cannot be served.
        ValueError: a setting is of the wrong type or outside its limits, or fits neither the model nor the machine.
        TypeError: a setting is unknown; the message lists the known ones.
    """

    def __init__(self, model: str | Path = DEFAULT_MODEL, *, progress: bool | Progress = True, **engine: Any) -> None:
        settings = {"compilation_cache": str(cache_folder() / "compiled"), **engine}
        config = EngineConfig.from_keywords(settings)  # before the hard work
        if config.num_hosts > 1:
            raise ValueError(
                f"num_hosts is {config.num_hosts}; a model over several hosts is served with `eagre serve`"
            )
        num_programs = 0

        def configure(eos_token_ids: tuple[int, ...]) -> EngineConfig:
            nonlocal config
            config = EngineConfig(**{"eos_token_ids": eos_token_ids, **settings})
            return config

        with shown(progress) as tell:

            def watch(stage: str, done: int, total: int) -> None:
                nonlocal num_programs
                if stage == "compile":
                    num_programs = total
                tell(stage, done, total)

            loaded = plan_with(str(model), configure, watch).load(watch)
        super().__init__(loaded, str(model), config, num_programs)

    @classmethod
    def from_loaded(cls, loaded: LoadedModel, *, model: str, config: EngineConfig, num_programs: int = 0) -> Self:
        """An LLM over an engine that is loaded already. The arguments are those of `LLMLifecycle`."""
        llm = cls.__new__(cls)
        LLMLifecycle.__init__(llm, loaded, model, config, num_programs)
        return llm

    # ---------------------------------------------------------------- answers

    @overload
    def generate(
        self,
        prompts: list[str] | list[list[int]] | list[Prompt],
        params: Params | None = None,
        *,
        progress: ShowProgress = True,
        **options: Any,
    ) -> list[Output]: ...

    @overload
    def generate(
        self, prompts: Prompt, params: SamplingParams | None = None, *, progress: ShowProgress = True, **options: Any
    ) -> Output: ...

    def generate(
        self, prompts: Any, params: Params | None = None, *, progress: ShowProgress = True, **options: Any
    ) -> Output | list[Output]:
        """Completes each prompt, all of them concurrently.

            outputs = llm.generate(["The sea is", "The sky is"], max_tokens=16)

        Args:
            prompts: a text or a list of token ids, which gives an Output; or a list of such, which gives a list of
                Outputs.
            progress: several prompts show a bar on standard error; False is silent; a callable gets a BatchProgress
                about ten times a second, and once at the end.

        Raises InvalidParameter, before anything has run: a parameter or a prompt is rejected, of several named by its
        index.
        """
        if is_one_prompt(prompts):
            return self._run_one(COMPLETE, prompts, params, progress, options)
        return self._run_many(COMPLETE, prompts, params, progress, options)

    @overload
    def chat(
        self, messages: Messages, params: SamplingParams | None = None, *, progress: ShowProgress = True, **options: Any
    ) -> Output: ...

    @overload
    def chat(
        self,
        messages: Sequence[Messages],
        params: Params | None = None,
        *,
        progress: ShowProgress = True,
        **options: Any,
    ) -> list[Output]: ...

    def chat(
        self, messages: Any, params: Params | None = None, *, progress: ShowProgress = True, **options: Any
    ) -> Output | list[Output]:
        """Like `generate`, with the assistant's next message; a list of conversations gives a list.

        `messages` are `[{"role": "user", "content": "…"}, …]`, or a list of such lists. Raises InvalidParameter as
        `generate`, and where the model is not made for chat.
        """
        if is_one_conversation(messages):
            return self._run_one(CHAT, messages, params, progress, options)
        return self._run_many(CHAT, messages, params, progress, options)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None, **options: Any) -> TextStream:
        """The answer while it is generated: an iterator of deltas, each with `text` and `token_ids`.

            for delta in llm.stream("Once upon a time"):
                print(delta.text, end="", flush=True)

        Closing or dropping the iterator aborts the request. Raises InvalidParameter where one is rejected.
        """
        engine = self._engine
        return engine.stream(
            COMPLETE.prepare_one(prompt, params, options, engine.prepare, is_streamed=True), owner=self
        )

    def stream_chat(self, messages: Messages, params: SamplingParams | None = None, **options: Any) -> TextStream:
        """Like `stream`, with the assistant's next message."""
        check_conversations(messages)
        engine = self._engine
        return engine.stream(CHAT.prepare_one(messages, params, options, engine.prepare, is_streamed=True), owner=self)

    def embed(self, prompts: Any, *, pooling: Pooling | str | None = None) -> np.ndarray:
        """The embeddings of prompts: float32[hidden] of one prompt, float32[num_prompts, hidden] of a list.

        They are made of the states of the model's last layer after the last norm, not normalized: "cls", the state of
        the first token, "last", that of the last one, "mean", the mean of all, "mean_sqrt_len", "weightedmean" or
        "max", as sentence-transformers has them; by default what the makers of the model say, else "last". Raises
        InvalidParameter, before anything has run.
        """
        engine = self._engine
        poolings: Poolings
        if pooling is None:
            poolings = usual_pooling(engine.text_model.sentences, is_encoder=self.model_info.is_encoder)
        elif pooling not in POOLINGS:
            raise InvalidParameter("pooling", f"pooling is {pooling!r}; it must be {' or '.join(POOLINGS)}")
        else:
            poolings = Pooling(pooling)
        is_one = is_one_prompt(prompts)
        texts = [prompts] if is_one else list(prompts)
        with as_invalid_parameter("prompt"):
            token_ids = [
                TextPrompt(prompt).encode(engine.text_model) if isinstance(prompt, str) else list(prompt)
                for prompt in texts
            ]
        embeddings = engine.embed(token_ids, poolings)
        if is_one:
            return embeddings[0]
        return np.stack(embeddings) if embeddings else np.zeros((0, 0), np.float32)

    def count_tokens(self, text_or_messages: str | Messages) -> int:
        """Tokens of a text, or of messages in the chat template with the generation prompt; raises InvalidParameter."""
        text_model = self._engine.text_model
        if isinstance(text_or_messages, str):
            with as_invalid_parameter("prompt"):
                return len(TextPrompt(text_or_messages).encode(text_model))
        check_conversations(text_or_messages)
        with as_invalid_parameter("messages"):
            request = ChatCall.parse({"messages": CHAT.to_wire(list(text_or_messages))}).request
            return len(self._engine.with_pictures(request).prompts[0].encode(text_model))

    # ---------------------------------------------------------------- save and load

    def save(self, folder: str | Path) -> Path:
        """Writes the model's name and the engine's configuration, without weights; returns the file; raises OSError."""
        self._engine.check_open()
        return SavedConfig.of(self.model, self.config).write(Path(folder))

    @classmethod
    def load(
        cls, folder: str | Path, *, model: str | Path | None = None, progress: bool | Progress = True, **engine: Any
    ) -> Self:
        """Loads the model whose configuration was saved to `folder`.

        Args:
            model: where the model is now; it must be the same one, by size and SHA-256.
            engine: fields of EngineConfig that override the saved ones.

        Raises:
            SavedLLMError: nothing usable is saved there, or the model is another one.
            ModelStoreError, OSError, ValueError, TypeError: as when an LLM is created.
        """
        saved = SavedConfig.read(Path(folder))
        name = saved.model if model is None else str(model)
        with shown(progress) as tell:
            saved.check_model(name, tell)
            return cls(name, progress=tell, **{**saved.engine, **engine})

    # ---------------------------------------------------------------- how it is done

    def _run_one(
        self, task: RequestBuilder, start: Any, params: Any, progress: ShowProgress, options: Options
    ) -> Output:
        engine = self._engine
        job = task.prepare_one(start, params, options, engine.prepare)
        (output,) = engine.generate([job], progress if callable(progress) else None)
        return output

    def _run_many(
        self, task: RequestBuilder, starts: Any, params: Params | None, progress: ShowProgress, options: Options
    ) -> list[Output]:
        engine = self._engine
        jobs = task.prepare_many(starts, params, options, engine.prepare)
        if callable(progress) or not progress or not jobs:
            return engine.generate(jobs, progress if callable(progress) else None)
        with ProgressReporter() as reporter:

            def show(batch: BatchProgress) -> None:
                note = f"{batch.tokens_per_second:.0f} tokens/s"
                reporter("generate", batch.num_finished, batch.num_prompts, note)

            return engine.generate(jobs, show)
