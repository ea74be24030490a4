"""How a row of a file becomes a prompt item: mapped columns, checked once, refused by name.

May import: `ports`, `config`, `errors`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from outlast.config.schema import DatasetSection
from outlast.errors import DataFailure, RecipeError
from outlast.ports import PromptItem


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of the columns that carry the prompt (text or messages) and the reference answer."""

    prompt: str
    messages: str | None
    answer: str

    @classmethod
    def of(cls, section: DatasetSection) -> Columns:
        return cls(section.prompt_field, section.messages_field, section.answer_field)

    def check(self, available: Iterable[str], *, where: str) -> None:
        """Raise RecipeError for a mapped column that `where` lacks, listing those it has."""
        have = sorted(available)
        needed = (
            ("prompt_field", self.prompt)
            if self.messages is None
            else ("messages_field", self.messages)
        )
        for key, column in (needed, ("answer_field", self.answer)):
            if column not in have:
                raise RecipeError(
                    f"dataset.{key} is {column!r}, but {where} has the columns "
                    f"{', '.join(have) or '(none)'}; name one of them"
                )

    def item(self, row: Mapping[str, object], *, where: str) -> PromptItem:
        """The item of one row. All columns go to the reward, `answer` under that name too.

        Raises DataFailure naming `where` (file and row) when the prompt is unusable.
        """
        if self.answer not in row:
            raise DataFailure(f"{where}: column {self.answer!r} is missing from this row")
        fields = {**row, "answer": row[self.answer]}
        if self.messages is not None:
            messages = _messages(row.get(self.messages), column=self.messages, where=where)
            return PromptItem(None, messages, fields)
        text = row.get(self.prompt)
        if not isinstance(text, str) or not text:
            raise DataFailure(
                f"{where}: column {self.prompt!r} holds {_short(text)}; "
                "a non-empty text is required"
            )
        return PromptItem(text, fields=fields)


def _messages(value: object, *, column: str, where: str) -> tuple[Mapping[str, str], ...]:
    required = "a non-empty list of {role, content} texts is required"
    if not isinstance(value, list) or not value:
        raise DataFailure(f"{where}: column {column!r} holds {_short(value)}; {required}")
    messages = []
    for message in value:
        fine = isinstance(message, Mapping) and all(
            isinstance(message.get(key), str) for key in ("role", "content")
        )
        if not fine:
            raise DataFailure(f"{where}: column {column!r} has {_short(message)}; {required}")
        messages.append({"role": message["role"], "content": message["content"]})
    return tuple(messages)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
