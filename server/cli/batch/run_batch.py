"""`eagre run-batch`: loads a model into this process and answers all requests of a file."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

from engine.interface.types import Progress
from server.admission.keyring import ANYBODY
from server.cli.batch.answer_file import AnswerFile
from server.cli.batch.request_file import Place, RequestFile
from server.cli.client.errors import NoAnswer
from server.http.batches.line_execution import Postponed, execute
from server.serving.served_models import ServedModels
from server.startup.model_loader import LoadedModel, load_model
from server.startup.progress import ProgressReporter
from server.startup.settings import ServerSettings

_STAGE = "requests"
_JOIN_S = 0.5  # for the engine's last step

Load = Callable[[ServerSettings, Progress], LoadedModel]


class BatchCommand:
    """Answers the requests of a file that have no answer yet."""

    def __init__(self, requests: RequestFile, answers: AnswerFile, progress: ProgressReporter) -> None:
        self._requests = requests
        self._answers = answers
        self._progress = progress
        self._left = [place for place in requests.places if place.custom_id not in answers.answered]
        self.num_answered = 0  # by this command
        self.num_failed = 0
        self._num_tokens = 0
        self._began = time.monotonic()

    async def run(self, settings: ServerSettings, load: Load) -> None:
        """Raises NoAnswer: the model cannot be loaded, the engine fails, or a file cannot be used."""
        if not self._left:
            return
        try:
            loaded = await asyncio.to_thread(load, settings, self._progress)
        except (OSError, ValueError, RuntimeError) as error:
            raise NoAnswer(str(error)) from error
        served, engine = ServedModels(settings), loaded.engine
        try:
            engine.start(asyncio.get_running_loop())
            served.first.open(engine, loaded.text_model)
            await self._answer_all(served, engine.failure)
        finally:
            await served.close()
            engine.shutdown(_JOIN_S)

    async def _answer_all(self, served: ServedModels, failure: asyncio.Future[None]) -> None:
        self._began = time.monotonic()
        self._show()
        places = iter(self._left)
        workers = [
            asyncio.create_task(self._work(served, places))
            for _ in range(min(served.settings.engine.max_num_seqs, len(self._left)))
        ]
        working = asyncio.gather(*workers)
        try:
            await asyncio.wait((working, failure), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise NoAnswer(f"the engine failed: {failure.exception()}")
            await working
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(working, *workers, return_exceptions=True)

    async def _work(self, served: ServedModels, places: Iterator[Place]) -> None:
        for place in places:
            request = await served.workers.run(self._requests.read, place)
            while True:
                try:
                    answer = await execute(served, ANYBODY, request)
                    break
                except Postponed as error:
                    await asyncio.sleep(error.seconds)
            line = await served.workers.run(answer.to_line, place.custom_id)
            await served.workers.run(self._answers.add, line)
            self.num_answered += 1
            self.num_failed += answer.has_failed
            self._num_tokens += answer.usage.output_tokens
            self._show()

    def _show(self) -> None:
        total = len(self._requests.places)
        seconds = max(time.monotonic() - self._began, 1e-3)
        note = f"{self._num_tokens / seconds:.1f} tokens/s"
        self._progress(_STAGE, total - len(self._left) + self.num_answered, total, note)


def run_batch(settings: ServerSettings, requests: RequestFile, answers: AnswerFile) -> str:
    """Answers what has no answer yet; returns a sentence about all. Raises NoAnswer, KeyboardInterrupt."""
    with ProgressReporter() as progress:
        command = BatchCommand(requests, answers, progress)
        asyncio.run(command.run(settings, load_model))
    total, failed = len(requests.places), command.num_failed
    text = f"{command.num_answered} of {total} requests answered"
    if command.num_answered < total:
        text += f", the other {total - command.num_answered} before"
    return text + (f"; {failed} of them with an error" if failed else "")
