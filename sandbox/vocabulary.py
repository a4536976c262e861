"""The words of the tiny world and their token ids, and the tokenizer files that go with a checkpoint."""

NUMBERS = 30
PAD, BOS, EOS, THINK, CLOSE, TIME_UP, LOW, MEDIUM, HIGH = range(9)
WORDS = (
    "<pad>",
    "<bos>",
    "<eos>",
    "<think>",
    "</think>",
    "time-is-up",
    "low:",
    "medium:",
    "high:",
    *(str(number) for number in range(NUMBERS)),
    *(f"={digit}" for digit in range(10)),
    "x",
    "+",
    "x:",
    "1:",
    *(f"?{digit}" for digit in range(10)),
)
FIRST_NUMBER = WORDS.index("0")
FIRST_DIGIT = WORDS.index("=0")
X, PLUS, X_TOTAL, TOTAL = range(FIRST_DIGIT + 10, FIRST_DIGIT + 14)
FIRST_TARGET = WORDS.index("?0")
INTERRUPTION = (TIME_UP, CLOSE)


def to_text(token_ids: list[int] | tuple[int, ...]) -> str:
    """The tokens as words with spaces between them, as the shipped tokenizer splits them."""
    return " ".join(WORDS[token] for token in token_ids)
