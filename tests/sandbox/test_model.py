"""The policy is a standard Qwen3: what `transformers` computes from the files that we write."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_policies import VOCABULARY, random_policy
from torch import Tensor

from sandbox import vocabulary as words
from sandbox.engine import Cache, Engine
from sandbox.model import Policy, load_policy, save_policy
from sandbox.pretrain import save_start_policy
from sandbox.tasks.digit_sum import DigitSum
from sandbox.world import start_policy
from scalerl.errors import InputError

transformers: Any = pytest.importorskip("transformers")

SIZES: list[dict[str, int]] = [
    {},
    {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3},
    {"num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 48, "head_dim": 16},
    {"num_hidden_layers": 1, "intermediate_size": 40, "head_dim": 64},
    {"num_attention_heads": 8, "num_key_value_heads": 2, "rope_theta": 500, "hidden_size": 20},
]


def huggingface(folder: Path) -> Any:
    return transformers.Qwen3ForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True
    ).eval()


def random_tokens(rows: int, width: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (rows, width), generator=generator)


@torch.no_grad()
def log_softmax(policy: Policy, token_BT: Tensor) -> Tensor:
    return (policy.hidden(token_BT) @ policy.head_VD.T).log_softmax(-1)


@torch.no_grad()
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_log_probs_are_those_of_transformers(sizes: dict[str, int], tmp_path: Path) -> None:
    policy = random_policy(seed=3, **sizes)
    save_policy(policy, tmp_path)
    token_BT = random_tokens(5, 60)
    theirs_BTV = huggingface(tmp_path)(token_BT).logits.log_softmax(-1)
    ours_BTV = log_softmax(policy, token_BT)
    assert theirs_BTV.std() > 0.5, "near-uniform predictions would agree whatever the code does"
    torch.testing.assert_close(ours_BTV, theirs_BTV, atol=1e-5, rtol=0)


@torch.no_grad()
def test_padded_rows_agree_with_transformers_and_with_themselves(tmp_path: Path) -> None:
    """Padding comes after, so it changes nothing before it: with a mask there, with causality here."""
    policy = random_policy(seed=4, num_attention_heads=4, num_key_value_heads=2)
    save_policy(policy, tmp_path)
    token_BT, lengths = random_tokens(3, 30, seed=1), (30, 17, 4)
    valid_BT = torch.arange(30) < torch.tensor(lengths)[:, None]
    token_BT = token_BT.masked_fill(~valid_BT, words.PAD)
    theirs_BTV = huggingface(tmp_path)(token_BT, attention_mask=valid_BT.long()).logits
    ours_BTV = log_softmax(policy, token_BT)
    torch.testing.assert_close(
        ours_BTV[valid_BT], theirs_BTV.log_softmax(-1)[valid_BT], atol=1e-5, rtol=0
    )
    for row, length in enumerate(lengths):
        alone_BTV = log_softmax(policy, token_BT[row : row + 1, :length])
        torch.testing.assert_close(ours_BTV[row, :length], alone_BTV[0], atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_cached_decoding_equals_the_full_forward(sizes: dict[str, int]) -> None:
    """Rows that stand at different positions, in a cache that is too large and full of garbage."""
    policy = random_policy(seed=5, **sizes)
    token_BT, starts = random_tokens(3, 24, seed=2), torch.tensor([4, 9, 13])
    cache = Cache(policy.config, 7, 40, "cpu")
    for part in cache.tensors():
        part.normal_(std=10.0)
    full_BTD = policy.hidden(token_BT)
    prefilled_BTD = Engine(policy).prefill(token_BT[:, :13], cache)
    torch.testing.assert_close(prefilled_BTD, full_BTD[:, :13], atol=1e-5, rtol=1e-5)
    rows, engine = torch.arange(3), Engine(policy)
    for step in range(11):
        position_B = starts + step
        width = int(position_B.max()) + 1
        hidden_BD = engine.decode(token_BT[rows, position_B], position_B, cache, width)
        torch.testing.assert_close(hidden_BD, full_BTD[rows, position_B], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_moved_row_goes_on_from_its_own_past() -> None:
    policy = random_policy(seed=6)
    token_BT = random_tokens(3, 10, seed=3)
    cache = Cache(policy.config, 3, 12, "cpu")
    Engine(policy).prefill(token_BT[:, :9], cache)
    cache.copy_rows(cache, torch.tensor([2, 0]), torch.tensor([0, 1]), 9)
    after_BD = Engine(policy).decode(token_BT[[2, 0], 9], torch.tensor([9, 9]), cache, 10)
    torch.testing.assert_close(after_BD, policy.hidden(token_BT)[[2, 0], 9], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_saved_folder_loads_back_bit_for_bit(tmp_path: Path) -> None:
    policy = random_policy(seed=7, num_hidden_layers=3)
    save_policy(policy, tmp_path)
    again = load_policy(tmp_path)
    assert again.config == policy.config
    token_BT = random_tokens(2, 20)
    assert torch.equal(again.hidden(token_BT), policy.hidden(token_BT))


@torch.no_grad()
def test_a_folder_that_transformers_saved_loads_too(tmp_path: Path) -> None:
    """`site.policy` takes a folder in Hugging Face layout; theirs names the rotary base in another place."""
    policy = random_policy(seed=8, rope_theta=1000)
    save_policy(policy, tmp_path / "ours")
    huggingface(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    again = load_policy(tmp_path / "theirs")
    token_BT = random_tokens(2, 20)
    assert torch.equal(again.hidden(token_BT), policy.hidden(token_BT))


@pytest.mark.parametrize(("key", "value"), [("model_type", "llama"), ("tie_word_embeddings", True)])
def test_another_architecture_is_bad_input(tmp_path: Path, key: str, value: object) -> None:
    save_policy(random_policy(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(InputError, match=key):
        load_policy(tmp_path)


@torch.no_grad()
def test_the_shipped_folder_is_small_and_loads_in_transformers() -> None:
    folder = start_policy("digit_sum")
    policy = load_policy(folder)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_000_000
    assert policy.config.head_dim >= 32, "vLLM's CPU attention takes no less"
    assert policy.config.vocab_size == DigitSum().vocab_size
    theirs = huggingface(folder)
    task = DigitSum()
    for prompt in task.prompts("validation")[:30]:
        token_BT = torch.tensor([[*prompt.token_ids, *task.solve(prompt)]])
        theirs_BTV = theirs(token_BT).logits.log_softmax(-1)
        # Trained log-probs reach -40; there float32 itself is 4e-5 off (transformers, against float64)
        torch.testing.assert_close(log_softmax(policy, token_BT), theirs_BTV, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("origin", ["shipped", "saved"])
def test_the_tokenizer_round_trips_every_word(origin: str, tmp_path: Path) -> None:
    folder = start_policy("digit_sum")
    if origin == "saved":
        folder = tmp_path
        save_start_policy(random_policy(), folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    everything = list(range(VOCABULARY))
    assert tokenizer(words.to_text(everything))["input_ids"] == everything
    assert tokenizer.convert_ids_to_tokens(everything) == list(words.WORDS[:VOCABULARY])
    assert tokenizer.decode(everything).split() == list(words.WORDS[:VOCABULARY])
    special = (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id)
    assert special == (words.PAD, words.BOS, words.EOS)
