"""Logs and histories as trainers print them, each of steps of known length, for these tests."""

import json
import struct
from pathlib import Path

SECONDS = 2.0
"""What a step takes in each, but for the first, which is longer."""
BATCH, LENGTH, GPUS = 16, 1024, 8
STEPS = range(1, 13)


def seconds(step: int) -> float:
    """What a step takes."""
    return 5 * SECONDS if step == 1 else SECONDS


def _lines(form: str, per_second: float = 0.0) -> str:
    """A line for each step; `rate` is what `per_second` samples or tokens are of a step's time."""
    return "".join(
        form.format(
            step=step, s=seconds(step), ms=1e3 * seconds(step), rate=per_second / seconds(step)
        )
        for step in STEPS
    )


TOKENS = BATCH * LENGTH
NEMO = _lines(
    "[NeMo I 2025] Training epoch 0, iteration {step}/99 | lr: 3e-05 | global_batch_size: 16 |"
    " global_step: {step} | reduced_train_loss: 11.03 | train_step_timing in s: {s:.4g} |"
    " consumed_samples: 16\n"
)
DEEPSPEED = _lines(
    "[2025-03-01 10:00:00,123] [INFO] [timer.py:264:stop] epoch=0/micro_step={step}/"
    "global_step={step}, RunningAvgSamplesPerSec=7.1, CurrSamplesPerSec={rate:.9f}, "
    "MemAllocated=10.5GB, MaxMemAllocated=20.25GB\n",
    BATCH,
)
DEEPSPEED_PIPELINE = _lines(
    "steps: {step} loss: 2.1034 iter time (s): {s:.3f} samples/sec: {rate:.3f}\n", BATCH
)
MAXTEXT = _lines(
    "completed step: {step}, seconds: {s:.3f}, TFLOP/s/device: 180.500, Tokens/s/device: 1024.000,"
    " total_weights: 16384, loss: 10.862\n"
)
AUTOMODEL = _lines(
    "2025 | INFO | root | step {step} | epoch 0 | loss 2.1034 | grad_norm 1.0000 | lr 1.00e-05 |"
    " mem 41.50 GiB | tps {rate:.2f}(1.00/gpu) | num_label_tokens 900\n",
    TOKENS,
)
NANOTRON = _lines(
    "07/01/2025 10:00:00 [INFO|DP=0|PP=0|TP=0]: iteration: {step} / 100 | consumed_tokens: 16.4K |"
    " time_per_iteration_ms: {s:.3g}K | tokens_per_sec: 8.19K | tokens_per_sec_per_gpu: 1.02K |"
    " global_batch_size: 16.4K | lm_loss: 10.9 | lr: 0.0003 | model_tflops_per_gpu: 12.5 | eta: 0\n"
)
OLMO_CORE = _lines(
    "2025-06-01 INFO [step={step}/1000,epoch=1,eta=1h]\n    train/CE loss=2.104\n"
    "    throughput/device/TPS={rate:,.1f}\n",
    TOKENS / GPUS,
)
LITGPT = "".join(
    f"Epoch 1 | iter {4 * step - 3 + part} step {step - (part < 3)} | loss train: 1.2, val: n/a |"
    f" iter time: {250 * seconds(step):.2f} ms{' (step)' if part == 3 else ''} remaining time: 0\n"
    for step in STEPS
    for part in range(4)
)
LOGS = {
    "nemo": NEMO, "deepspeed": DEEPSPEED, "deepspeed_pipeline": DEEPSPEED_PIPELINE,
    "maxtext": MAXTEXT, "automodel": AUTOMODEL, "nanotron": NANOTRON, "olmo_core": OLMO_CORE,
    "litgpt": LITGPT,
}  # fmt: skip

_PRINTED = "[2025-03-01 10:00:00,1] [INFO] [config.py:1003:print]   "
DEEPSPEED_LISTING = "".join(
    f"{_PRINTED}{line}\n"
    for line in (
        "fp16_enabled ................. True",
        "train_batch_size ............. 16",
        "train_micro_batch_size_per_gpu  2",
        "world_size ................... 8",
        "zero_optimization_stage ...... 3",
    )
)
MAXTEXT_LISTING = (
    "Num_devices: 8, shape (1, 1, 8, 1)\n"
    "Config param ici_fsdp_parallelism: 8\nConfig param max_target_length: 1024\n"
    "Config param model_name: llama3-8b\nConfig param per_device_batch_size: 2.0\n"
    "Config param quantization: \nConfig param remat_policy: full\n"
)
NANOTRON_LISTING = (
    "07/01/2025 10:00:00 [INFO|DP=0|PP=0|TP=0]: Config:\n"
    "Config(general=GeneralArgs(project='debug', run='a'),\n"
    "       parallelism=ParallelismArgs(dp=4,\n" + 35 * " " + "pp=1,\n" + 35 * " " + "tp=2,\n"
    + 35 * " " + "context_parallel_size=1),\n"
    "       tokens=TokensArgs(sequence_length=1024,\n" + 25 * " " + "train_steps=12,\n"
    + 25 * " " + "micro_batch_size=2,\n" + 25 * " " + "batch_accumulation_per_replica=2,\n"
)  # fmt: skip
LITGPT_LISTING = (
    "{'checkpoint_dir': PosixPath('checkpoints/meta-llama/Meta-Llama-3-8B'),\n 'devices': 8,\n"
    " 'num_nodes': 1,\n 'train': TrainArgs(save_interval=1000,\n"
    "                    global_batch_size=16,\n                    micro_batch_size=2,\n"
    "                    max_seq_length=1024)}\n"
)
LITGPT_PRETRAINING = (  # litgpt/utils.py: capture_hparams makes dicts of records
    "{'devices': 8,\n 'model_name': 'Llama-3-8B',\n 'num_nodes': 1,\n"
    " 'train': {'epochs': None,\n           'global_batch_size': 16,\n"
    "           'max_seq_length': 1024,\n           'micro_batch_size': 2}}\n"
)
LISTINGS = {
    "deepspeed": DEEPSPEED_LISTING, "deepspeed_pipeline": DEEPSPEED_LISTING,
    "maxtext": MAXTEXT_LISTING, "nanotron": NANOTRON_LISTING, "litgpt": LITGPT_LISTING,
}  # fmt: skip
"""What trainers print of a run before its first step, cut down to what is read."""

# --- histories ---------------------------------------------------------------------------


def clock(step: int) -> float:
    """Time of day at the end of a step."""
    return 1_700_000_000.0 + sum(seconds(x) for x in range(1, step + 1))


CSV = "Step,_timestamp,train/loss\n" + "".join(f"{x},{clock(x)},2.5\n" for x in STEPS)
TIMED_CSV = "step,train_step_timing in s\n" + "".join(f"{x},{seconds(x)}\n" for x in STEPS)
JSONL = "".join(json.dumps({"_step": x, "_timestamp": clock(x), "loss": 1.0}) + "\n" for x in STEPS)
TRAINER_STATE = json.dumps(
    {
        "global_step": 100,
        "log_history": [
            {"step": 10, "loss": 2.0, "epoch": 0.1},
            {"step": 100, "train_runtime": 200.0, "train_steps_per_second": 0.5},
        ],
    }
)


def _varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def event_file(tag: str = "train/loss") -> bytes:
    """TensorBoard's records of one scalar, checksums left blank."""
    records = b""
    for step in STEPS:
        value = _field(1, tag.encode()) + _varint(2 << 3 | 5) + struct.pack("<f", seconds(step))
        event = b"\x09" + struct.pack("<d", clock(step)) + b"\x10" + _varint(step)
        event += _field(5, _field(1, value))
        records += struct.pack("<Q", len(event)) + bytes(4) + event + bytes(4)
    return records


def wandb_file(padding: int = 0) -> bytes:
    """An offline run of W&B: a record a step, parted where a block of 32 KiB ends."""
    out = bytearray(b":W&B\xe1\xbe\x00")
    for step in STEPS:
        named = {"loss": 2.5, "_timestamp": clock(step), "_step": step, "note": "x" * padding}
        items = b"".join(
            _field(1, _field(2, name.encode()) + _field(16, json.dumps(value).encode()))
            for name, value in named.items()
        )
        data, first = _field(2, items), True
        while data or first:
            left = 2**15 - len(out) % 2**15
            if left < 7:
                out += bytes(left)
                continue
            piece, data = data[: left - 7], data[left - 7 :]
            kind = (1 if not data else 2) if first else (4 if not data else 3)
            out += bytes(4) + struct.pack("<HB", len(piece), kind) + piece
            first = False
    return bytes(out)


def mlflow_run(folder: Path) -> Path:
    """A run's folder as MLflow writes it."""
    (folder / "metrics" / "train").mkdir(parents=True)
    lines = "".join(f"{int(1e3 * clock(step))} 2.5 {step}\n" for step in STEPS)
    (folder / "metrics" / "train" / "loss").write_text(lines)
    return folder
