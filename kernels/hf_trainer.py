"""Time steps of transformers' Trainer, whole: a real trainer on one GPU, random weights and tokens.

    python hf_trainer.py --minutes 3 --out hf_trainer.json
    python hf_trainer.py --list                     # the runs, one JSON object a line

It needs transformers, and peft for adapters; nothing is downloaded. A record holds the time from
the end of one step to that of the next as the GPU's stream sees it, the Trainer's own work between
steps included, and the peaks of torch's allocator. `shape` says the run in the words of a table of
measured runs. Precision, optimizer, clipping and loss are the Trainer's defaults under `bf16=True`.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import tempfile
from dataclasses import asdict, dataclass, replace

import _timing
from _timing import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
WARM_UP, TIMED = 3, 8
"""Steps."""
SEQUENCES = 64
"""In the data set, drawn again and again."""
SIZES = {
    "llama-3.2-1b": ("llama", 16, 2048, 8192, 32, 8, 64, 128256, True),
    "llama-3.2-3b": ("llama", 28, 3072, 8192, 24, 8, 128, 128256, True),
    "llama-3.1-8b": ("llama", 32, 4096, 14336, 32, 8, 128, 128256, False),
    "qwen3-0.6b": ("qwen3", 28, 1024, 3072, 16, 8, 128, 151936, True),
    "qwen3-1.7b": ("qwen3", 28, 2048, 6144, 16, 8, 128, 151936, True),
    "gpt2-medium": ("gpt2", 24, 1024, 4096, 16, 16, 64, 50257, True),
    "llama-tiny": ("llama", 2, 64, 128, 4, 2, 16, 256, True),
}
"""Family, layers, hidden, ffn_hidden, heads, kv_heads, head_dim, vocab, tied: published
configurations, but for the last."""
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True)
class Case:
    """One run."""

    model: str
    seq_len: int
    micro_batch: int
    accumulate: int = 1
    recompute: str = "none"
    lora_rank: int = 0
    """0: all parameters are trained, from fp32; else the others wait in bf16."""
    compiled: bool = False
    kernel = "trainer_step"
    dtype = "bf16"

    @property
    def name(self) -> str:
        """What the progress line shows."""
        return " ".join(f"{key}={value}" for key, value in asdict(self).items() if value)

    def shape(self) -> dict[str, object]:
        """Return the run in the words of a table of measured runs."""
        keys = "family layers hidden ffn_hidden heads kv_heads head_dim vocab tied_embeddings"
        sizes = dict(zip(keys.split(), SIZES[self.model], strict=True))
        return asdict(self) | sizes | {"global_batch": self.micro_batch * self.accumulate}


EIGHT = Case("llama-3.1-8b", 2048, 1, recompute="full", lora_rank=16)
CASES = [
    Case("llama-3.2-1b", 2048, 4),
    Case("llama-3.2-1b", 2048, 1),
    Case("llama-3.2-1b", 2048, 8, recompute="full"),
    EIGHT,
    replace(EIGHT, micro_batch=4),
    replace(EIGHT, recompute="none"),
    Case("qwen3-0.6b", 1024, 2),
    Case("qwen3-1.7b", 4096, 1, accumulate=4),
    Case("gpt2-medium", 1024, 8),
    Case("llama-3.2-3b", 4096, 1, recompute="full"),
    Case("llama-3.2-1b", 4096, 1, accumulate=4),
    Case("llama-3.2-1b", 2048, 4, compiled=True),
    Case("gpt2-medium", 1024, 2),
    Case("qwen3-0.6b", 4096, 2, recompute="full"),
]
TRIALS = [Case("llama-tiny", 32, 2), Case("llama-tiny", 32, 1, accumulate=2, lora_rank=4)]


def model_of(case: Case, device):
    """Build the model with random weights on the device."""
    import transformers

    family, layers, hidden, ffn, heads, kv_heads, head_dim, vocab, tied = SIZES[case.model]
    if family == "gpt2":
        sizes = {"n_layer": layers, "n_embd": hidden, "n_inner": ffn, "n_head": heads}
        config = transformers.GPT2Config(vocab_size=vocab, n_positions=case.seq_len, **sizes)
    else:
        kind = {"llama": transformers.LlamaConfig, "qwen3": transformers.Qwen3Config}[family]
        config = kind(
            num_hidden_layers=layers,
            hidden_size=hidden,
            intermediate_size=ffn,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            vocab_size=vocab,
            tie_word_embeddings=tied,
            max_position_embeddings=case.seq_len,
        )
    config.use_cache = False
    dtype = torch.bfloat16 if case.lora_rank else torch.float32
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation="sdpa"
        )
    if case.lora_rank:
        import peft

        targets = peft.LoraConfig(r=case.lora_rank, lora_alpha=32, target_modules=TARGETS)
        model = peft.get_peft_model(model, targets)
        if case.recompute == "full":
            model.enable_input_require_grads()
    return model


class Tokens(torch.utils.data.Dataset):
    """Random tokens, which are their own labels."""

    def __init__(self, case: Case) -> None:
        shape = (SEQUENCES, case.seq_len)
        self.tokens = torch.randint(SIZES[case.model][7], shape)

    def __len__(self) -> int:
        """Return how often it can be asked before it starts again."""
        return len(self.tokens) * 64

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        """Return one sequence."""
        tokens = self.tokens[at % len(self.tokens)]
        return {"input_ids": tokens, "labels": tokens}


def train(case: Case, run: _timing.Run) -> dict[str, object]:
    """Train a few steps; return seconds between their ends, peaks and losses."""
    import time

    import transformers

    on_gpu = run.device.kind == "cuda"
    ends, losses = [], []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, arguments, state, control, **more):
            if len(ends) == WARM_UP - 1 and on_gpu:
                torch.cuda.reset_peak_memory_stats()
            event = torch.cuda.Event(enable_timing=True) if on_gpu else time.perf_counter()
            if on_gpu:
                event.record()
            ends.append(event)

        def on_log(self, arguments, state, control, logs=None, **more):
            losses.append((logs or {}).get("loss"))

    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=case.micro_batch,
            gradient_accumulation_steps=case.accumulate,
            gradient_checkpointing=case.recompute == "full",
            torch_compile=case.compiled,
            max_steps=WARM_UP + TIMED,
            bf16=on_gpu,
            use_cpu=not on_gpu,
            logging_steps=WARM_UP + TIMED,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            seed=run.arguments.seed,
        )
        trainer = transformers.Trainer(
            model=model_of(case, run.device.device),
            args=arguments,
            train_dataset=Tokens(case),
            callbacks=[Clock()],
        )
        trainer.train()
    run.device.synchronize()
    run.device.sensors.read()
    pairs = list(itertools.pairwise(ends))[WARM_UP - 1 :]
    if on_gpu:
        times_s = [before.elapsed_time(after) / 1e3 for before, after in pairs]
    else:
        times_s = [after - before for before, after in pairs]
    memory = {}
    if on_gpu:
        memory = {
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        }
    return {"times_s": times_s, "memory": memory, "losses": losses}


def main() -> int:
    """Run the program."""
    made = _timing.parser(__doc__, minutes=3.0)
    made.add_argument("--list", action="store_true", help="print the runs and end")
    arguments = made.parse_args()
    if arguments.list:
        for case in CASES:
            print(json.dumps(case.shape()))
        return 0
    try:
        import transformers
    except ImportError:
        made.error("it needs transformers: pip install transformers peft accelerate")
    transformers.logging.set_verbosity_error()
    with _timing.Run(arguments, __file__) as run:
        on_gpu = run.device.kind == "cuda" and not run.quick
        for case in run.each(CASES if on_gpu else TRIALS):
            with run.guard(case.kernel, case.shape(), case.dtype):
                found = train(case, run)
                times_s = found.pop("times_s")
                found["library"] = f"transformers {transformers.__version__}"
                run.record(case.kernel, case.dtype, case.shape(), "step", times_s, **found)
            run.flush()
            gc.collect()
            run.device.release()
    return run.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
