"""What a person sees while documents are tokenised."""

from typing import Self

from nadaraya.data.documents import Documents, Place


class TokenisingProgress:
    """Progress on a terminal, by standard error: a bar, tokens so far, the time left; warnings anywhere."""

    def __init__(self, documents: Documents, enabled: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        self._documents, self._tokens, self._enabled = documents, 0, enabled
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[tokens]:,} tokens"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not (enabled and self._console.is_terminal),
        )
        self._line = self._bar.add_task("", total=None, tokens=0)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        self._bar.update(self._line, description=text)

    def warn(self, text: str) -> None:
        if self._enabled:
            self._console.print(f"warning: {text}", markup=False)

    def at(self, place: Place, tokens: int) -> None:
        self._tokens += tokens
        done = self._documents.part_read(place)
        if done is not None:
            self._bar.update(self._line, completed=done, total=1.0)
        self._bar.update(self._line, description="tokenising", tokens=self._tokens)
