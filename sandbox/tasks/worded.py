"""What our tasks have in common: the words of the tiny world, and four fixed splits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sandbox import vocabulary as words
from scalerl.task import Prompt


@dataclass(frozen=True)
class WordedTask:
    """A task in the words of `sandbox.vocabulary`; a subclass draws its splits, names itself, verifies and solves."""

    name: str = ""
    splits: tuple[str, ...] = ("train", "validation", "ood", "benchmark")
    vocab_size: int = len(words.WORDS)
    eos_id: int = words.EOS
    think_close_id: int = words.CLOSE
    interruption: tuple[int, ...] = words.INTERRUPTION
    train_prompts: int = 1152
    held_out_prompts: int = 512
    ood_prompts: int = 256

    def drawn(self) -> Mapping[str, Sequence[Prompt]]:
        """All splits, the same every time."""
        raise NotImplementedError

    def prompts(self, split: str) -> Sequence[Prompt]:
        if split not in self.splits:
            raise KeyError(f"{self.name} has no split {split!r}; it has {', '.join(self.splits)}")
        return self.drawn()[split]

    def to_text(self, token_ids: Sequence[int]) -> str:
        return words.to_text(list(token_ids))
