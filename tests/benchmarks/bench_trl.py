"""Our updates a second against those of TRL's GRPOTrainer at equal work: `make bench`, or

    OMP_NUM_THREADS=1 .venv-bench/bin/python tests/benchmarks/bench_trl.py [--turns 7] [--updates 3]

The same Qwen3, prompts, batch, verifier, loss and optimiser. An update is: generate 768 completions, verify them, one
forward and backward pass, one step of AdamW. The sides take turns of a few updates in one process on one thread, so
that whatever else the machine does meets both. Exit status 1 if a case with a bar is below it.
"""

# pyright: reportMissingImports=false
# TRL and datasets are in an environment of their own.

import argparse
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

import scalerl
from sandbox import vocabulary as words
from sandbox.decoder import Decoder, sample_all
from sandbox.model import ModelConfig, Policy, load_policy, save_policy
from sandbox.rows import Sampling
from sandbox.tasks.digit_sum import DigitSum
from sandbox.world import POLICIES
from scalerl.batch import RolloutBatch
from scalerl.length import score_group
from scalerl.recipe import Recipe
from scalerl.rollout import Group
from scalerl.settings import Layers, override_tables, read_toml
from scalerl.site import Sandbox
from scalerl.task import Prompt
from scalerl.update import LossPair, make_optimizer, policy_update, prepare, update_stats

BAR = 3.0
PROMPTS, GROUP = 48, 16
ANSWER = 4  # tokens of the budget that are not for thinking
MICRO_BATCHES = (96, 192, 384, 768)  # completions of a pass of TRL's: it gets the fastest
SHIPPED = POLICIES / "digit_sum"
NEVER = load_policy(
    SHIPPED
).config.vocab_size  # no word has this id: as end of sequence it ends nothing
WIDE = ModelConfig(NEVER, 64, 128, num_attention_heads=4, num_key_value_heads=2)
RECIPES = Path(scalerl.__file__).parent / "recipes"
SITE = Path(__file__).parents[2] / "scenarios" / "sites" / "sandbox.toml"


@dataclass(frozen=True)
class Endless(DigitSum):
    """DigitSum whose completions end by length alone; what follows an end of sequence is not looked at."""

    eos_id: int = NEVER

    def verify(self, prompt: Prompt, token_ids: Sequence[int]) -> bool:
        said = list(token_ids)
        end = said.index(words.EOS) + 1 if words.EOS in said else len(said)
        return super().verify(prompt, said[:end])


@dataclass(frozen=True)
class Case:
    """What both sides train: every completion has `tokens` tokens if the task is endless, else at most so many."""

    name: str
    folder: Path
    tokens: int
    task: DigitSum
    bar: float | None = None

    @property
    def forced(self) -> bool:
        return self.task.eos_id == NEVER


@dataclass
class Tally:
    """What a side has done, counted on the tensors that it trained on, and the seconds of each part of it."""

    updates: int = 0
    completions: int = 0
    prompt_tokens: int = 0
    trained_tokens: int = 0
    generate_s: list[float] = field(default_factory=list)
    score_s: list[float] = field(default_factory=list)
    update_s: list[float] = field(default_factory=list)

    def work(self, forced: bool) -> tuple[int, ...]:
        """What must be equal: where lengths are not forced, all but the sampled tokens."""
        same = self.updates, self.completions, self.prompt_tokens
        return (*same, self.trained_tokens) if forced else same


def recipe_of(tokens: int) -> Recipe:
    """ScaleRL without what makes the work of two trainers unequal: nothing is dropped, cut or stale."""
    layers = Layers()
    layers.add(read_toml(RECIPES / "scalerl.toml"), "scalerl.toml")
    layers.add({"site": read_toml(SITE)}, SITE.name)
    changes = (
        "length.kind=none",
        "zero_variance=keep",
        "aggregation=token_mean",
        f"prompts_per_update={PROMPTS}",
        f"group_size={GROUP}",
        f"site.thinking_tokens={tokens - ANSWER}",
        f"site.answer_tokens={ANSWER}",
    )
    for table in override_tables(changes):
        layers.add(table, "the benchmark")
    return layers.build(Recipe)


def site_of(recipe: Recipe) -> Sandbox:
    assert isinstance(recipe.site, Sandbox)
    return recipe.site


class Ours:
    """The parts of a run of the sandbox in their order, without its clock: generators with weights of their own."""

    def __init__(self, case: Case) -> None:
        self.recipe, self.task, self.tally = recipe_of(case.tokens), case.task, Tally()
        self.site = site_of(self.recipe)
        self.prompts = self.task.prompts("train")
        self.policy = load_policy(case.folder)
        self.optimizer = make_optimizer(self.policy.parameters(), self.site.optimizer)
        self.loss = LossPair.of(self.recipe.loss)
        sampling = Sampling(
            self.recipe.length,
            self.site.thinking_tokens,
            self.site.answer_tokens,
            self.site.temperature,
            torch.float32,
        )
        widest = max(len(prompt.token_ids) for prompt in self.prompts)
        self.decoder = Decoder(
            load_policy(case.folder), self.task, sampling, PROMPTS * GROUP, widest
        )

    def update(self) -> None:
        """Push, generate, verify, pack, train."""
        tally, began = self.tally, perf_counter()
        version = tally.updates
        first = version * PROMPTS % len(self.prompts)
        prompts = self.prompts[first : first + PROMPTS]
        self.decoder.set_weights(self.policy.state_dict(), version)
        sampled = sample_all(self.decoder, prompts, GROUP, seed=version)
        generated = perf_counter()
        groups = [
            score_group(Group(place, p.id, list(p.token_ids), found), p, self.task, self.recipe)
            for place, (p, found) in enumerate(zip(prompts, sampled, strict=True))
        ]
        batch = RolloutBatch.from_groups(groups)
        train = prepare(batch, self.recipe)
        scored = perf_counter()
        found = policy_update(
            self.policy,
            self.optimizer,
            train,
            self.recipe,
            self.loss,
            micro_batch_tokens=self.site.micro_batch_tokens,
            temperature=self.site.temperature,
            version=version,
        )
        update_stats(batch, train, version, found)
        tally.updates += 1
        tally.completions += train.rows
        tally.prompt_tokens += sum(len(g.prompt_ids) * len(g.completions) for g in groups)
        tally.trained_tokens += int(train.mask_BT.sum())
        tally.generate_s.append(generated - began)
        tally.score_s.append(scored - generated)
        tally.update_s.append(perf_counter() - scored)


class Theirs(GRPOTrainer):
    """GRPOTrainer as it is, with a clock around its two halves."""

    def __init__(self, **keywords: Any) -> None:
        self.tally = Tally()
        super().__init__(**keywords)

    def _generate_single_turn(self, *arguments: Any, **keywords: Any) -> Any:
        began = perf_counter()
        found = super()._generate_single_turn(*arguments, **keywords)
        self.tally.generate_s.append(perf_counter() - began)
        return found

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        began = perf_counter()
        found = super()._generate_and_score_completions(inputs)
        self.tally.score_s.append(perf_counter() - began - self.tally.generate_s[-1])
        self.tally.completions += len(found["completion_mask"])
        self.tally.prompt_tokens += int(found["prompt_mask"].sum())
        self.tally.trained_tokens += int(found["completion_mask"].sum())
        return found


class TurnAbout(TrainerCallback):
    """Lets our side do as many updates after each of their turns, the first of which is a warm-up of both."""

    def __init__(self, case: Case, theirs: Tally, updates: int) -> None:
        self.case, self.ours, self.theirs, self.updates = case, Ours(case), theirs, updates
        self.began = perf_counter()
        self.turns: list[tuple[float, float]] = []  # seconds of a turn: ours, theirs

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.theirs.updates = state.global_step
        if state.global_step % self.updates:
            return
        theirs_s, began = perf_counter() - self.began, perf_counter()
        for _turn in range(self.updates):
            self.ours.update()
        self.turns.append((perf_counter() - began, theirs_s))
        ours, theirs = (side.work(self.case.forced) for side in (self.ours.tally, self.theirs))
        if ours != theirs:
            raise SystemExit(f"{self.case.name}: unequal work, ours {ours}, TRL's {theirs}")
        self.began = perf_counter()


class Stopwatch(TrainerCallback):
    """Processor seconds of each step."""

    def __init__(self) -> None:
        self.began = process_time()
        self.steps: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.steps.append(process_time() - self.began)
        self.began = process_time()


def their_trainer(case: Case, steps: int, micro_batch: int) -> Theirs:
    """GRPOTrainer on the case, ready to train: lengths end as the case says, rewards are our verifier's."""
    model = AutoModelForCausalLM.from_pretrained(
        case.folder, dtype=torch.float32, attn_implementation="sdpa"
    )
    tokenizer = AutoTokenizer.from_pretrained(case.folder)
    if (
        case.forced
    ):  # an end that cannot be sampled costs TRL less than a logits processor that forbids one
        model.generation_config.eos_token_id = None
        tokenizer.add_special_tokens({"eos_token": "<never>"})
    assert tokenizer.eos_token_id == case.task.eos_id
    prompts = case.task.prompts("train")
    texts = [case.task.to_text(prompt.token_ids) for prompt in prompts]
    assert tokenizer(texts)["input_ids"] == [list(prompt.token_ids) for prompt in prompts]

    def reward(completion_ids: list[list[int]], id: list[int], **_: Any) -> list[float]:
        pairs = zip(id, completion_ids, strict=True)
        return [1.0 if case.task.verify(prompts[place], ids) else -1.0 for place, ids in pairs]

    trainer = Theirs(
        model=model,
        args=their_config(case, steps, micro_batch),
        reward_funcs=reward,
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": texts, "id": [p.id for p in prompts]}),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def their_config(case: Case, steps: int, micro_batch: int) -> GRPOConfig:
    """The recipe in TRL's words: on policy, so that it needs no second forward pass; nothing logged or saved."""
    recipe = recipe_of(case.tokens)
    optimizer = site_of(recipe).optimizer
    return GRPOConfig(
        output_dir=str(case.folder / "trl"),
        loss_type="cispo",
        epsilon_high=recipe.loss.model_dump()["eps_max"],  # for cispo an absolute cap, as ours
        beta=0.0,
        num_iterations=1,
        scale_rewards="batch",
        temperature=1.0,
        num_generations=GROUP,
        max_completion_length=case.tokens,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=PROMPTS * GROUP // micro_batch,
        generation_batch_size=PROMPTS * GROUP,
        max_steps=steps,
        learning_rate=optimizer.learning_rate,
        adam_beta1=optimizer.beta1,
        adam_beta2=optimizer.beta2,
        adam_epsilon=optimizer.eps,
        weight_decay=optimizer.weight_decay,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        shuffle_dataset=False,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def fastest_micro_batch(case: Case) -> int:
    """The size of TRL's passes that costs it the least: best of two steps each, by processor time."""
    seconds = {}
    for size in MICRO_BATCHES:
        trainer, watch = their_trainer(case, 3, size), Stopwatch()
        trainer.add_callback(watch)
        trainer.train()
        seconds[size] = min(watch.steps[1:])
    print(
        "TRL by completions of a pass: "
        + ", ".join(f"{size}: {1e3 * s:.0f} ms" for size, s in seconds.items())
    )
    return min(seconds, key=seconds.__getitem__)


def measure(case: Case, turns: int, updates: int) -> float:
    """Ratio of the sides' updates a second, median over the turns; prints every turn and the parts."""
    print(f"\n{case.name}")
    theirs = their_trainer(case, (turns + 1) * updates, fastest_micro_batch(case))
    about = TurnAbout(case, theirs.tally, updates)
    theirs.add_callback(about)
    theirs.train()
    ours = about.ours.tally
    lengths = [tally.trained_tokens / tally.completions for tally in (ours, theirs.tally)]
    each = ours.completions // ours.updates
    print(f"{each} completions an update; mean tokens: ours {lengths[0]:.1f}, TRL {lengths[1]:.1f}")
    rates = [[updates / pair[side] for pair in about.turns[1:]] for side in (0, 1)]
    ratios = [a / b for a, b in zip(*rates, strict=True)]
    print(f"{'turn':<18}" + " ".join(f"{i:>6}" for i in range(1, turns + 1)) + "  median")
    rows = (("ours, updates/s", rates[0]), ("TRL, updates/s", rates[1]), ("ratio", ratios))
    for what, row in rows:
        print(f"{what:<18}" + " ".join(f"{x:>6.2f}" for x in row) + f"  {median(row):>6.2f}")
    print_parts((ours, theirs.tally), [median(rate) for rate in rates], updates)
    return median(ratios)


def print_parts(sides: tuple[Tally, Tally], rates: list[float], skip: int) -> None:
    """Median milliseconds of each part of an update.

    TRL's training is what its two halves leave of the whole: passes, step, the Trainer's loop.
    """
    columns = []
    for tally, rate in zip(sides, rates, strict=True):
        generate, score = median(tally.generate_s[skip:]), median(tally.score_s[skip:])
        columns.append((generate, score, 1 / rate - generate - score, 1 / rate))
    print(f"{'ms of an update':<18}   ours    TRL  ratio")
    names = ("generate", "verify, pack", "train", "whole")
    for what, a, b in zip(names, *columns, strict=True):
        print(f"  {what:<16} {1e3 * a:>6.0f} {1e3 * b:>6.0f} {b / a:>6.1f}")


def wide_policy(folder: Path) -> Path:
    """A random policy of width 64 with the shipped tokenizer."""
    torch.manual_seed(0)
    save_policy(Policy(WIDE), folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SHIPPED / file, folder / file)
    return folder


def cases(folder: Path) -> list[Case]:
    tiny = Path(shutil.copytree(SHIPPED, folder / "tiny"))
    wide = wide_policy(folder / "wide")
    return [
        Case("start policy, width 32, 20 tokens each", tiny, 20, Endless(), bar=BAR),
        Case("start policy, width 32, 40 tokens each", tiny, 40, Endless()),
        Case("random policy, width 64, 20 tokens each", wide, 20, Endless()),
        Case("start policy, width 32, lengths its own, at most 40", tiny, 40, DigitSum()),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=7, help="of each side, after the warm-up")
    parser.add_argument("--updates", type=int, default=3, help="of a turn")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"torch {torch.__version__}, transformers {transformers.__version__}, trl {trl.__version__}"
    )
    with tempfile.TemporaryDirectory() as name:
        ratios = {case: measure(case, asked.turns, asked.updates) for case in cases(Path(name))}
    print(f"\nload of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for case, ratio in ratios.items():
        bar = "" if case.bar is None else f", bar {case.bar:.0f}"
        print(f"{case.name}: {ratio:.2f} times TRL's updates a second{bar}")
    return int(any(case.bar is not None and ratio < case.bar for case, ratio in ratios.items()))


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    sys.exit(main())
